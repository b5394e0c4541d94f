//! Zip archives with parameters, told apart by the names of their entries.

use super::bytes::ReadAt;
use super::error::ParameterError;
use super::torch::{self, Options};
use super::{Part, npy, zip};

/// Reads the tensors of an archive of `torch.save` or `numpy.savez`.
///
/// # Errors
/// If the archive is invalid, has another format, or its tensors cannot be read.
pub fn read_archive(file: &(impl ReadAt + ?Sized), options: &Options) -> Result<Part, ParameterError> {
    let archive = zip::read_archive(file)?;
    let names = || archive.entries.keys();
    if let Some(pickle) = torch::pickle_of(&archive) {
        return torch::read_pickle(&archive, pickle, options);
    }
    if names().any(|name| name.ends_with(".weights.h5")) {
        return Err(ParameterError::Format {
            what: "a Keras archive (.keras), whose weights are in HDF5,",
            instead: "write them with numpy.savez(\"out.npz\", **{w.path: w.numpy() for w in model.weights}) \
                      and give out.npz",
        });
    }
    if names().any(|name| name.ends_with(".npy")) {
        return npy::read_npz(&archive);
    }
    Err(ParameterError::zip(file.size(), "neither data.pkl of torch.save nor arrays of NumPy in the archive"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::parameters::testing::zip;

    #[test]
    fn other_archives_are_named() {
        let shown = |file: &[u8]| read_archive(file, &Options::default()).unwrap_err().to_string();
        let keras = zip(&[("metadata.json", b"{}"), ("config.json", b"{}"), ("model.weights.h5", b"")]);
        assert!(
            shown(&keras)
                .starts_with("a Keras archive (.keras), whose weights are in HDF5, is not read; write")
        );
        let other = zip(&[("readme", b"")]);
        let neither = "neither data.pkl of torch.save nor arrays of NumPy in the archive";
        assert!(shown(&other).ends_with(neither), "{}", shown(&other));
    }
}
