//! TensorBoard's event files, with scalars only.
//!
//! A file is records; a record is its length (u64, little endian), a masked CRC-32C of the length, the payload, and a
//! masked CRC-32C of the payload (TensorFlow, core/lib/io/record_writer.cc). A payload is an `Event`
//! (core/util/event.proto): 1 wall_time double, 2 step int64, 3 file_version string, 5 summary; a summary is values
//! (core/framework/summary.proto): 1 tag string, 2 simple_value float. Fields are written as the protocol buffer
//! encoding specifies: a tag of number and wire type, then the value.

use crate::model::checksum;

/// The first record of a file; `wall_time` in seconds since 1970.
pub fn version(wall_time: f64) -> Vec<u8> {
    let mut event = Vec::new();
    double(&mut event, 1, wall_time);
    text(&mut event, 3, b"brain.Event:2");
    record(&event)
}

/// One record with the scalars of a step; values that are not finite are left out, because charts cannot show them.
pub fn scalars(wall_time: f64, step: u64, values: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in values.iter().filter(|(_, value)| value.is_finite()) {
        let mut one = Vec::new();
        text(&mut one, 1, tag.as_bytes());
        key(&mut one, 2, FIXED_32);
        #[expect(clippy::cast_possible_truncation, reason = "the format has single precision")]
        one.extend_from_slice(&(*value as f32).to_le_bytes());
        text(&mut summary, 1, &one);
    }
    let mut event = Vec::new();
    double(&mut event, 1, wall_time);
    key(&mut event, 2, VARINT);
    varint(&mut event, step);
    text(&mut event, 5, &summary);
    record(&event)
}

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;
const FIXED_32: u64 = 5;

fn key(out: &mut Vec<u8>, field: u64, wire: u64) {
    varint(out, field << 3 | wire);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    key(out, field, FIXED_64);
    out.extend_from_slice(&value.to_le_bytes());
}

fn text(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    key(out, field, BYTES);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn record(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(payload.len() + 16);
    out.extend_from_slice(&length);
    out.extend_from_slice(&checksum::masked(&length).to_le_bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(&checksum::masked(payload).to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_first_record_is_as_tensorboard_writes_it() {
        // A record that torch.utils.tensorboard wrote at that time.
        let expected = "1800000000000000a37f4b22096c1f0eed42c0da411a0d627261696e2e4576656e743a32f8c8a558";
        let at = f64::from_le_bytes([0x6c, 0x1f, 0x0e, 0xed, 0x42, 0xc0, 0xda, 0x41]);
        assert_eq!(hex(&version(at)), expected);
    }

    #[test]
    fn a_scalar_has_its_tag_value_and_step() {
        let bytes = scalars(1.0, 300, &[("loss", 2.5), ("nothing", f64::NAN)]);
        let payload = &bytes[12..bytes.len() - 4];
        assert_eq!(
            hex(payload),
            concat!(
                "09000000000000f03f", // 1: 1.0
                "10ac02",             // 2: 300
                "2a0d",               // 5: 13 bytes
                "0a0b",               // 1: 11 bytes
                "0a046c6f7373",       // 1: loss
                "1500002040",         // 2: 2.5
            )
        );
    }
}
