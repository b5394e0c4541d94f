//! CRC-32C (Castagnoli), as the records of TensorBoard's event files have it. No dependency has an implementation.

/// The checksum of each byte, by the reflected polynomial.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "less than 256")]
        let mut sum = at as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
            bit += 1;
        }
        table[at] = sum;
        at += 1;
    }
    table
};

/// The checksum as the format masks it, so that the checksum of data that contains checksums remains useful.
pub fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| TABLE[usize::from(sum.to_le_bytes()[0] ^ byte)] ^ (sum >> 8);
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_rfc_3720() {
        // RFC 3720 appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
