//! TensorBoard's event files, as bytes: records of `TFRecord` around `Event` messages.
//!
//! A record is its length (8 bytes, little-endian), the masked CRC-32C of the length, the data and
//! the masked CRC-32C of the data (tensorflow/core/lib/io/record_writer.cc). A file begins with the event that names
//! its version, `brain.Event:2` (tensorflow/core/util/event.proto).

/// The record that a file begins with.
pub fn file_version(unix_seconds: f64) -> Vec<u8> {
    let mut event = Vec::with_capacity(32);
    time(&mut event, unix_seconds);
    text(&mut event, 3, b"brain.Event:2");
    record(&event)
}

/// The record of one step's scalars, by their tags; those that are not finite are left out.
pub fn scalars(unix_seconds: f64, step: u64, values: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, number) in values.iter().filter(|(_, number)| number.is_finite()) {
        let mut value = Vec::with_capacity(tag.len() + 8);
        text(&mut value, 1, tag.as_bytes());
        value.push(2 << 3 | FIXED_32);
        value.extend_from_slice(&single(*number).to_le_bytes());
        text(&mut summary, 1, &value);
    }
    let mut event = Vec::with_capacity(summary.len() + 24);
    time(&mut event, unix_seconds);
    event.push(2 << 3 | VARINT);
    varint(&mut event, step);
    text(&mut event, 5, &summary);
    record(&event)
}

const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const DELIMITED: u8 = 2;
const FIXED_32: u8 = 5;

fn time(event: &mut Vec<u8>, unix_seconds: f64) {
    event.push(1 << 3 | FIXED_64);
    event.extend_from_slice(&unix_seconds.to_le_bytes());
}

/// A field that has a length: text or a message.
fn text(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    message.push(field << 3 | DELIMITED);
    varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

fn varint(message: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 {
            message.push(low);
            return;
        }
        message.push(low | 0x80);
    }
}

/// TensorBoard's scalars have single precision.
#[expect(clippy::cast_possible_truncation, reason = "that is the format; what is too large is the largest")]
fn single(number: f64) -> f32 {
    (number as f32).clamp(f32::MIN, f32::MAX)
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked(&length).to_le_bytes());
    record.extend_from_slice(data);
    record.extend_from_slice(&masked(data).to_le_bytes());
    record
}

/// Stored checksums are masked, since a checksum of data that has checksums is weak (tensorflow/core/lib/hash/crc32c.h).
fn masked(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (RFC 3720, section 12.1), reflected.
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |sum, byte| TABLE[usize::from(sum.to_le_bytes()[0] ^ byte)] ^ (sum >> 8))
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut place = 0;
    // The place as the type of the sums, which no conversion gives in a constant.
    let mut start: u32 = 0;
    while place < table.len() {
        let mut sum = start;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
            bit += 1;
        }
        table[place] = sum;
        place += 1;
        start += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        // Section B.4.
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(
            [crc32c(&[0; 32]), crc32c(&[0xff; 32]), crc32c(&rising)],
            [0x8a91_36aa, 0x62a8_ab43, 0x46dd_794e]
        );
    }

    #[test]
    fn a_file_begins_as_tensorflows_do() {
        // The time of a file that TensorFlow wrote.
        let at = f64::from_le_bytes([0x6c, 0x1f, 0x0e, 0xed, 0x42, 0xc0, 0xda, 0x41]);
        assert_eq!(
            hex(&file_version(at)),
            "1800000000000000a37f4b22096c1f0eed42c0da411a0d627261696e2e4576656e743a32f8c8a558"
        );
    }

    #[test]
    fn a_scalar_is_a_summary() {
        let bytes = scalars(1.0, 300, &[("loss", 2.5), ("none", f64::NAN)]);
        // wall_time 1.0, step 300, summary { value { tag "loss", simple_value 2.5 } }.
        assert_eq!(
            hex(&bytes[12..bytes.len() - 4]),
            "09000000000000f03f10ac022a0d0a0b0a046c6f73731500002040"
        );
        assert_eq!(single(1e300), f32::MAX);
    }
}
