//! TensorBoard event files: TFRecords of protobuf events.
//!
//! A TFRecord is a length (8 bytes), the masked CRC-32C of the length, the data, and the masked CRC-32C of the data
//! (`tensorflow/core/lib/io/record_writer.cc`). The messages: `tensorboard/compat/proto/event.proto`, `summary.proto` and
//! `tensor.proto`. Scalars whose tags name memory and its unit are series; of everything else, only the steps are read.

use std::io::{self, Read};

use prost::Message as _;

use super::protobuf::Fields;
use super::quantity;
use super::{RunRecord, RunRecordError, Samples};
use memwarden::model::checksum;
use memwarden::model::steps::Steps;

/// Maximum length of an event that is read; a larger one has images or a graph, and is skipped.
const LONGEST: u64 = 1 << 20;
const FRONT: usize = 12;

#[derive(prost::Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    /// A list of values, field 1, which are decoded one by one.
    #[prost(bytes = "vec", optional, tag = "5")]
    summary: Option<Vec<u8>>,
}

#[derive(prost::Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<Tensor>,
}

#[derive(prost::Message)]
struct Tensor {
    /// 1 is float, 2 is double.
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(bytes = "vec", tag = "4")]
    content: Vec<u8>,
    #[prost(float, repeated, tag = "5")]
    floats: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    doubles: Vec<f64>,
}

impl Value {
    fn scalar(&self) -> Option<f64> {
        let Some(tensor) = &self.tensor else { return self.simple_value.map(f64::from) };
        match (tensor.dtype, &*tensor.content) {
            (1, []) => tensor.floats.first().copied().map(f64::from),
            (2, []) => tensor.doubles.first().copied(),
            (1, bytes) => Some(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
            (2, bytes) => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
            _ => None,
        }
    }
}

/// Whether a file begins with the length of a record and its checksum.
pub(super) fn begins(front: &[u8]) -> bool {
    front.first_chunk::<FRONT>().and_then(length).is_some_and(|length| length > 0)
}

/// The length that the front of a record states; absent where its checksum is wrong.
fn length(front: &[u8; FRONT]) -> Option<u64> {
    let (length, sum) = front.split_at(8);
    let length: [u8; 8] = length.try_into().ok()?;
    // A fuzzer finds no checksum.
    (checksum::masked(&length).to_le_bytes() == sum || cfg!(fuzzing)).then(|| u64::from_le_bytes(length))
}

/// Reads an event file.
///
/// # Errors
/// [`RunRecordError`], with the offset of the event.
pub(crate) fn read(mut input: impl Read) -> Result<RunRecord, RunRecordError> {
    let (mut samples, mut steps, mut remarks) = (Samples::default(), Steps::default(), Vec::new());
    let (mut offset, mut data) = (0_u64, Vec::new());
    loop {
        let wrong = |problem| RunRecordError::At { offset, problem };
        data.clear();
        if (&mut input).take(FRONT as u64).read_to_end(&mut data)? == 0 {
            break;
        }
        let Ok(front) = <[u8; FRONT]>::try_from(&*data) else {
            remarks.push(format!("the file ends within an event, at offset {offset}"));
            break;
        };
        let length =
            length(&front).ok_or_else(|| wrong("the checksum of the length of an event is wrong"))?;
        let whole = length.saturating_add(4);
        data.clear();
        let found = if length > LONGEST {
            io::copy(&mut (&mut input).take(whole), &mut io::sink())?
        } else {
            (&mut input).take(whole).read_to_end(&mut data)? as u64
        };
        if found < whole {
            remarks.push(format!("the file ends within an event, at offset {offset}"));
            break;
        }
        if let Some((event, sum)) = data.split_last_chunk::<4>() {
            if checksum::masked(event).to_le_bytes() != *sum && !cfg!(fuzzing) {
                return Err(wrong("the checksum of an event is wrong"));
            }
            let malformed = || wrong("an event that is not a message");
            let event = Event::decode(event).map_err(|_| malformed())?;
            if event.summary.is_some()
                && let Ok(step) = u64::try_from(event.step)
            {
                steps.push(event.wall_time, step);
            }
            for field in Fields(&event.summary.unwrap_or_default()) {
                let (1, value) = field.map_err(|_| malformed())? else { continue };
                let value = Value::decode(value).map_err(|_| malformed())?;
                let Some(quantity) = quantity::of_name(&value.tag) else { continue };
                if let Some(scalar) = value.scalar() {
                    samples.push(&value.tag, quantity.gpu, event.wall_time, scalar * quantity.unit)?;
                }
            }
        }
        offset = offset.saturating_add(whole).saturating_add(FRONT as u64);
    }
    let series = samples.finish(&mut remarks);
    if series.is_empty() {
        let problem =
            "no tag of the event file names an amount of memory with its unit, such as memory/reserved_bytes";
        return Err(RunRecordError::Nothing(problem));
    }
    Ok(RunRecord { tool: "TensorBoard", series, steps, remarks, ..RunRecord::default() })
}
