//! Arguments of the form `--name value` and `--name`.

use anyhow::Context as _;

/// What remains of a command line.
#[derive(Clone, Debug)]
pub(crate) struct Arguments(Vec<String>);

impl Arguments {
    /// Those of this process, without its name.
    pub(crate) fn of_process() -> Self {
        Self(std::env::args_os().skip(1).map(|text| text.to_string_lossy().into_owned()).collect())
    }

    /// The first one.
    pub(crate) fn next(&mut self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    /// The value of an option, which is removed.
    pub(crate) fn option(&mut self, name: &str) -> Option<String> {
        let place = self.0.iter().position(|argument| argument == name)?;
        self.0.remove(place);
        (place < self.0.len()).then(|| self.0.remove(place))
    }

    /// The value of an option, or what it is without it.
    pub(crate) fn text(&mut self, name: &str, otherwise: &str) -> String {
        self.option(name).unwrap_or_else(|| otherwise.to_owned())
    }

    /// A number.
    ///
    /// # Errors
    /// It is not one.
    pub(crate) fn number(&mut self, name: &str, otherwise: f64) -> anyhow::Result<f64> {
        let number = self.option(name).map(|text| text.parse().with_context(|| format!("{name} {text}")));
        number.unwrap_or(Ok(otherwise))
    }

    /// A number of bytes or pieces; 0 without the option.
    ///
    /// # Errors
    /// It is not one.
    pub(crate) fn size(&mut self, name: &str) -> anyhow::Result<usize> {
        let number = self.option(name).map(|text| text.parse().with_context(|| format!("{name} {text}")));
        number.unwrap_or(Ok(0))
    }

    /// Whether an option without a value is given.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let place = self.0.iter().position(|argument| argument == name);
        place.map(|place| self.0.remove(place)).is_some()
    }

    /// Nothing may remain.
    ///
    /// # Errors
    /// The first argument that nothing asked for.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        match self.0.first() {
            None => Ok(()),
            Some(unknown) => anyhow::bail!("unknown argument {unknown}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_in_any_order() {
        let given = ["part", "--out", "x", "--allow-oom", "--step", "5"].map(str::to_owned).to_vec();
        let mut arguments = Arguments(given);
        assert_eq!(arguments.next().as_deref(), Some("part"));
        assert_eq!(arguments.size("--step").ok(), Some(5));
        assert!(arguments.flag("--allow-oom") && !arguments.flag("--allow-oom"));
        assert_eq!(arguments.text("--cuda", "libcuda"), "libcuda");
        assert!(arguments.clone().end().is_err());
        assert_eq!(arguments.option("--out").as_deref(), Some("x"));
        assert!(arguments.end().is_ok());
    }
}
