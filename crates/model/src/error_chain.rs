//! An error as text, with its causes.

use std::error::Error;

/// An error followed by its causes, separated by `: `. A cause whose text ends the text before it is not repeated.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    #[test]
    fn causes_follow_and_are_not_repeated() {
        let layer = |text, source: Option<Layer>| Layer { text, source: source.map(Box::new) };
        let error = layer("cannot send", Some(layer("no route: timeout", Some(layer("timeout", None)))));
        assert_eq!(error_chain(&error), "cannot send: no route: timeout");
        assert_eq!(error_chain(&layer("alone", None)), "alone");
    }
}
