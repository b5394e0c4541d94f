//! Computes how much memory a push takes when decoded, before it is decoded.
//!
//! An empty message has two bytes on the wire and a hundred or more in memory, so that 4 MiB could become 400 MiB.
//! This walks the messages of a metrics request (opentelemetry-proto 1.x) without allocating memory.

/// Upper bound of a message's memory in addition to its own bytes: the largest, a point of an exponential histogram,
/// has about 210, and a list that grows has a capacity of up to twice its length.
const MESSAGE: usize = 512;
/// The same bound for the frequent small messages: an attribute, and the value within it.
const ATTRIBUTE: usize = 256;
const VALUE: usize = 128;
/// The same bound for a text: its pointer and lengths are in its message; this is for the rounding and
/// bookkeeping of the heap.
const TEXT: usize = 64;
/// Maximum decoded size of a request. Two thousand points with five attributes each take a third of it.
pub(super) const MOST: usize = 24 << 20;
/// Maximum nesting of messages: seven levels down to the value of an attribute, and some for nested lists.
const DEEPEST: u32 = 16;

/// Why a request is rejected before decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Heavy {
    /// It would take too much memory.
    #[error("the request would take more than {} MiB in memory", MOST >> 20)]
    Memory,
    /// Its messages are nested too deeply.
    #[error("the messages of the request are nested too deeply")]
    Depth,
    /// It is not valid protobuf.
    #[error("the body is not a valid protobuf message")]
    Malformed,
}

/// The message types in a request.
#[derive(Clone, Copy)]
enum NumberKind {
    Request,
    ResourceMetrics,
    Resource,
    ScopeMetrics,
    Scope,
    Metric,
    Numbers,
    Number,
    Histograms,
    Histogram,
    Exponentials,
    Exponential,
    Summaries,
    Summary,
    Exemplar,
    Attribute,
    Value,
    Values,
    Pairs,
    /// Lists of many small values: counts of a byte each, names of two.
    Small,
}

impl NumberKind {
    /// The type of a field of this message, if the field can contain further messages.
    const fn field(self, number: u64) -> Option<Self> {
        Some(match (self, number) {
            (Self::Request, 1) => Self::ResourceMetrics,
            (Self::ResourceMetrics, 1) => Self::Resource,
            (Self::ResourceMetrics, 2) => Self::ScopeMetrics,
            (Self::ScopeMetrics, 1) => Self::Scope,
            (Self::ScopeMetrics, 2) => Self::Metric,
            (Self::Metric, 5 | 7) => Self::Numbers,
            (Self::Metric, 9) => Self::Histograms,
            (Self::Metric, 10) => Self::Exponentials,
            (Self::Metric, 11) => Self::Summaries,
            (Self::Numbers, 1) => Self::Number,
            (Self::Histograms, 1) => Self::Histogram,
            (Self::Exponentials, 1) => Self::Exponential,
            (Self::Summaries, 1) => Self::Summary,
            (Self::Number, 5) | (Self::Histogram, 8) | (Self::Exponential, 11) => Self::Exemplar,
            (Self::Resource, 1)
            | (Self::Scope, 3)
            | (Self::Metric, 12)
            | (Self::Number, 7)
            | (Self::Histogram, 9)
            | (Self::Exponential, 1)
            | (Self::Summary, 7)
            | (Self::Exemplar, 7)
            | (Self::Pairs, 1) => Self::Attribute,
            (Self::Attribute, 2) | (Self::Values, 1) => Self::Value,
            (Self::Value, 5) => Self::Values,
            (Self::Value, 6) => Self::Pairs,
            (Self::Resource, 3) | (Self::Exponential, 8 | 9) => Self::Small,
            _ => return None,
        })
    }

    /// Upper bound of the memory of one message of this type, in a list that grows.
    const fn size(self) -> usize {
        match self {
            Self::Attribute => ATTRIBUTE,
            Self::Value => VALUE,
            _ => MESSAGE,
        }
    }
}

/// Upper bound of the memory that `request` takes when decoded.
///
/// # Errors
/// [`Heavy`], if it exceeds the limit or cannot be determined.
pub(super) fn weigh(request: &[u8]) -> Result<usize, Heavy> {
    let mut weight = request.len();
    walk(request, NumberKind::Request, DEEPEST, &mut weight)?;
    Ok(weight)
}

fn walk(mut rest: &[u8], kind: NumberKind, deeper: u32, weight: &mut usize) -> Result<(), Heavy> {
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let (number, wire) = (key >> 3, key & 7);
        let length = match wire {
            0 => {
                varint(&mut rest)?;
                // One value of a list that is not packed.
                add(weight, 16)?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut rest)?).map_err(|_| Heavy::Malformed)?,
            5 => 4,
            _ => return Err(Heavy::Malformed),
        };
        let (field, after) = rest.split_at_checked(length).ok_or(Heavy::Malformed)?;
        rest = after;
        if wire != 2 {
            add(weight, 16)?;
            continue;
        }
        match kind.field(number) {
            Some(NumberKind::Small) => add(weight, MESSAGE.saturating_add(field.len().saturating_mul(32)))?,
            Some(inner) => {
                add(weight, inner.size())?;
                let deeper = deeper.checked_sub(1).ok_or(Heavy::Depth)?;
                walk(field, inner, deeper, weight)?;
            }
            None => add(weight, TEXT)?,
        }
    }
    Ok(())
}

fn add(weight: &mut usize, more: usize) -> Result<(), Heavy> {
    *weight = weight.saturating_add(more);
    if *weight > MOST { Err(Heavy::Memory) } else { Ok(()) }
}

fn varint(rest: &mut &[u8]) -> Result<u64, Heavy> {
    let mut value = 0;
    for place in 0..10 {
        let (byte, after) = rest.split_first().ok_or(Heavy::Malformed)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Heavy::Malformed)
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use prost::Message as _;

    use super::super::testing;
    use super::*;

    #[test]
    fn a_real_push_is_accepted_and_an_oversized_one_is_not_decoded() {
        let push = testing::push("loss", 2_000).encode_to_vec();
        let weight = weigh(&push).unwrap();
        assert!(weight > push.len() && weight < MOST / 2, "{weight} for {}", push.len());
        // Empty resources, and empty points in one metric, of two bytes each.
        assert_eq!(weigh(&[10, 0].repeat(1 << 20)), Err(Heavy::Memory));
        let mut bomb = [10, 0].repeat(1 << 19);
        for field in [5, 2, 2, 1_u8] {
            let mut outer = vec![field << 3 | 2];
            prost::encoding::encode_varint(bomb.len() as u64, &mut outer);
            outer.extend(bomb);
            bomb = outer;
        }
        assert!(ExportMetricsServiceRequest::decode(&bomb[..]).is_ok());
        assert_eq!(weigh(&bomb), Err(Heavy::Memory));
    }

    #[test]
    fn no_decoded_message_exceeds_its_estimate() {
        use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
        use opentelemetry_proto::tonic::metrics::v1::{
            Exemplar, ExponentialHistogramDataPoint, HistogramDataPoint, Metric, NumberDataPoint,
            ResourceMetrics, ScopeMetrics, SummaryDataPoint,
        };
        let largest = [
            size_of::<ResourceMetrics>(),
            size_of::<ScopeMetrics>(),
            size_of::<Metric>(),
            size_of::<NumberDataPoint>(),
            size_of::<HistogramDataPoint>(),
            size_of::<ExponentialHistogramDataPoint>(),
            size_of::<SummaryDataPoint>(),
            size_of::<Exemplar>(),
        ];
        assert!(largest.iter().all(|size| size * 2 <= MESSAGE), "{largest:?}");
        assert!(size_of::<KeyValue>() * 2 <= ATTRIBUTE && size_of::<AnyValue>() * 2 <= VALUE);
        assert!(size_of::<String>() * 2 <= TEXT);
    }

    #[test]
    fn nested_lists_are_bounded() {
        let mut nested = Vec::new();
        for field in [5, 1].into_iter().cycle().take(41).chain([2, 1, 1, 1_u8]) {
            let mut outer = vec![field << 3 | 2];
            prost::encoding::encode_varint(nested.len() as u64, &mut outer);
            outer.extend(nested);
            nested = outer;
        }
        assert_eq!(weigh(&nested), Err(Heavy::Depth));
        assert_eq!(weigh(&nested[..nested.len() - 1]), Err(Heavy::Malformed));
    }

    proptest::proptest! {
        #[test]
        fn small_messages_have_small_estimates(bytes in proptest::collection::vec(0_u8..40, 0..300)) {
            let _ = weigh(&bytes);
        }

        #[test]
        fn messages_that_prost_reads_are_accepted(count in 0_usize..40) {
            let push = testing::push("loss", count).encode_to_vec();
            proptest::prop_assert!(weigh(&push).is_ok());
        }
    }
}
