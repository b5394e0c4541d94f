//! Parses the response of a collector: the small protobuf messages of OTLP.
//!
//! `ExportMetricsServiceResponse { partial_success = 1 { rejected_data_points = 1; error_message = 2 } }`
//! for a success, and `google.rpc.Status { code = 1; message = 2; details = 3 }` for an error, whose details may
//! have a `google.rpc.RetryInfo { retry_delay = 1 { seconds = 1; nanos = 2 } }`.

use std::time::Duration;

/// The rejected part of an accepted export.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Partial {
    /// Number of points that the collector rejected.
    pub(super) rejected: u64,
    /// The collector's message about it.
    pub(super) message: String,
}

/// The response is not an OTLP message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Garbage;

/// Parses the response to an accepted export; returns the rejected part, if any.
pub(super) fn taken(body: &[u8]) -> Result<Option<Partial>, Garbage> {
    let mut found = Partial { rejected: 0, message: String::new() };
    for field in Fields(body) {
        if let (1, Value::Bytes(partial)) = field? {
            for field in Fields(partial) {
                match field? {
                    (1, Value::Number(rejected)) => found.rejected = rejected,
                    (2, Value::Bytes(text)) => found.message = printable(text),
                    _ => {}
                }
            }
        }
    }
    Ok((found.rejected > 0 || !found.message.is_empty()).then_some(found))
}

/// Parses the response to a rejected export: the message of the status, or the text itself.
pub(super) fn refused(body: &[u8]) -> String {
    let fields: Result<Vec<_>, Garbage> = Fields(body).collect();
    let message = fields.ok().and_then(|fields| {
        fields.into_iter().find_map(|field| match field {
            (2, Value::Bytes(text)) => Some(printable(text)),
            _ => None,
        })
    });
    message.unwrap_or_else(|| printable(body))
}

/// The retry delay in the status of a rejected call, if any.
pub(super) fn retry_delay(status: &[u8]) -> Option<Duration> {
    const RETRY_INFO: &[u8] = b"/google.rpc.RetryInfo";
    let bytes = |body, wanted| {
        Fields(body).map_while(Result::ok).filter_map(move |(tag, value)| match value {
            Value::Bytes(bytes) if tag == wanted => Some(bytes),
            _ => None,
        })
    };
    let detail = bytes(status, 3).find(|detail| bytes(detail, 1).any(|name| name.ends_with(RETRY_INFO)))?;
    let info = bytes(detail, 2).next()?;
    let mut wait = Duration::ZERO;
    for field in Fields(bytes(info, 1).next()?) {
        match field.ok()? {
            (1, Value::Number(seconds)) => wait = wait.checked_add(Duration::from_secs(seconds))?,
            (2, Value::Number(nanos)) => wait = wait.checked_add(Duration::from_nanos(nanos))?,
            _ => {}
        }
    }
    Some(wait)
}

/// The beginning of a text of the collector, without control characters.
pub(super) fn printable(bytes: &[u8]) -> String {
    /// Maximum length in a log message.
    const LONGEST: usize = 200;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * LONGEST)]);
    text.chars().filter(|character| !character.is_control()).take(LONGEST).collect()
}

enum Value<'b> {
    Number(u64),
    Bytes(&'b [u8]),
    Fixed,
}

/// The fields of one message.
struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn bytes(&mut self, length: u64) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn field(&mut self) -> Option<(u64, Value<'b>)> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => Value::Number(self.number()?),
            1 => self.bytes(8).map(|_| Value::Fixed)?,
            2 => {
                let length = self.number()?;
                Value::Bytes(self.bytes(length)?)
            }
            5 => self.bytes(4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        (key >> 3 != 0).then_some((key >> 3, value))
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = Result<(u64, Value<'b>), Garbage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(Garbage))
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
    };
    use prost::Message as _;

    use super::*;

    fn response(rejected: i64, message: &str) -> Vec<u8> {
        let partial =
            ExportMetricsPartialSuccess { rejected_data_points: rejected, error_message: message.to_owned() };
        ExportMetricsServiceResponse { partial_success: Some(partial) }.encode_to_vec()
    }

    #[test]
    fn partial_and_complete_success_are_distinguished() {
        assert_eq!(taken(&[]), Ok(None));
        assert_eq!(taken(&response(0, "")), Ok(None));
        let partial = Partial { rejected: 7, message: "too old".to_owned() };
        assert_eq!(taken(&response(7, "too old")), Ok(Some(partial)));
        assert_eq!(taken(&response(0, "slow down")).unwrap().unwrap().rejected, 0);
    }

    #[test]
    fn bytes_that_are_not_protobuf_are_an_error() {
        let whole = response(300, "a message");
        for cut in 1..whole.len() {
            assert_eq!(taken(&whole[..cut]), Err(Garbage), "{cut}");
        }
        assert_eq!(taken(b"<html>sign in</html>"), Err(Garbage));
        assert_eq!(taken(&[0x80; 32]), Err(Garbage));
    }

    #[test]
    fn an_error_is_read_as_status_or_as_text() {
        assert_eq!(refused(b"\x08\x03\x12\x09no tenant"), "no tenant");
        assert_eq!(refused(b"<html>\n\x1b[31mno</html>"), "<html>[31mno</html>");
        assert_eq!(refused("é".repeat(900).as_bytes()).chars().count(), 200);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = taken(&bytes);
            refused(&bytes);
            retry_delay(&bytes);
        }
    }
}
