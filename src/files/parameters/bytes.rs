//! Access to the bytes of a file, which the caller opens.

use super::error::ParameterError;

/// A file, or another source of bytes with random access.
pub trait ReadAt {
    /// Its size, in bytes.
    fn size(&self) -> u64;

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// An I/O error, and `UnexpectedEof` if the file ends before the buffer is full.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()>;
}

impl ReadAt for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(buffer.len());
        let found = self.get(start..end).ok_or(std::io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(found);
        Ok(())
    }
}

/// Reads bytes at an offset; the caller has checked their number.
pub(super) fn read(file: &(impl ReadAt + ?Sized), offset: u64, len: u64) -> Result<Vec<u8>, ParameterError> {
    let error = |source| ParameterError::Read { offset, len, source };
    let size = usize::try_from(len).map_err(|_| error(std::io::ErrorKind::OutOfMemory.into()))?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| error(std::io::ErrorKind::OutOfMemory.into()))?;
    bytes.resize(size, 0);
    file.read_exact_at(&mut bytes, offset).map_err(error)?;
    Ok(bytes)
}
