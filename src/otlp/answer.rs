//! Parses the response of a collector: the small protobuf messages of OTLP.
//!
//! `ExportMetricsServiceResponse { partial_success = 1 { rejected_data_points = 1; error_message = 2 } }`
//! for a success, and `google.rpc.Status { code = 1; message = 2; details = 3 }` for an error, whose details may
//! have a `google.rpc.RetryInfo { retry_delay = 1 { seconds = 1; nanos = 2 } }`.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
};
use prost::{DecodeError, Message};

/// `google.rpc.Status`, less its code.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(uint64, tag = "1")]
    seconds: u64,
    #[prost(uint32, tag = "2")]
    nanos: u32,
}

/// What a collector rejected of an export that it accepted; absent where it took everything.
pub(super) fn taken(body: &[u8]) -> Result<Option<ExportMetricsPartialSuccess>, DecodeError> {
    let partial = ExportMetricsServiceResponse::decode(body)?.partial_success;
    Ok(partial.filter(|partial| partial.rejected_data_points > 0 || !partial.error_message.is_empty()))
}

/// The message of an error, or its text where it is no `Status`.
pub(super) fn refused(body: &[u8]) -> String {
    let message = Status::decode(body).map(|status| status.message).unwrap_or_default();
    printable(if message.is_empty() { body } else { message.as_bytes() })
}

/// The delay that a `Status` with a `RetryInfo` requests.
pub(super) fn retry_delay(status: &[u8]) -> Option<Duration> {
    let details = Status::decode(status).ok()?.details;
    let info = details.iter().find(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let Delay { seconds, nanos } = RetryInfo::decode(&*info.value).ok()?.retry_delay?;
    Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanos.into()))
}

/// The beginning of a text of the collector, without control characters.
pub(super) fn printable(bytes: &[u8]) -> String {
    /// Maximum length in a log message.
    const LONGEST: usize = 200;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * LONGEST)]);
    text.chars().filter(|character| !character.is_control()).take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
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
        let partial =
            ExportMetricsPartialSuccess { rejected_data_points: 7, error_message: "too old".to_owned() };
        assert_eq!(taken(&response(7, "too old")), Ok(Some(partial)));
        assert_eq!(taken(&response(0, "slow down")).unwrap().unwrap().rejected_data_points, 0);
    }

    #[test]
    fn bytes_that_are_not_protobuf_are_an_error() {
        let whole = response(300, "a message");
        for cut in 1..whole.len() {
            assert!(taken(&whole[..cut]).is_err(), "{cut}");
        }
        assert!(taken(b"<html>sign in</html>").is_err());
        assert!(taken(&[0x80; 32]).is_err());
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
