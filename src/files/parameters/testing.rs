//! Small files of parameters, as their writers write them.

/// A safetensors file.
pub(crate) fn safetensors(json: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend(json.as_bytes());
    file.extend(data);
    file
}

/// A zip archive of stored entries, with the data at multiples of 64 bytes as PyTorch has it.
pub(crate) fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let start = u32::try_from(file.len()).unwrap();
        let (size, name_len) = (u32::try_from(data.len()).unwrap(), u16::try_from(name.len()).unwrap());
        let pad = 63 - (file.len() + 30 + name.len() + 4 + 63) % 64;
        let extra_len = u16::try_from(4 + pad).unwrap();
        file.extend(b"PK\x03\x04\0\0\0\x08\0\0\0\0\0\0\0\0\0\0");
        file.extend([size.to_le_bytes(), size.to_le_bytes()].concat());
        file.extend([name_len.to_le_bytes(), extra_len.to_le_bytes()].concat());
        file.extend(name.as_bytes());
        file.extend(b"FB");
        file.extend(u16::try_from(pad).unwrap().to_le_bytes());
        file.extend(vec![b'Z'; pad]);
        assert_eq!(file.len() % 64, 0);
        file.extend(*data);
        directory.extend(b"PK\x01\x02\0\0\0\0\0\x08\0\0\0\0\0\0\0\0\0\0");
        directory.extend([size.to_le_bytes(), size.to_le_bytes()].concat());
        directory.extend(name_len.to_le_bytes());
        directory.extend([0; 12]);
        directory.extend(start.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (count, start) = (u16::try_from(entries.len()).unwrap(), u32::try_from(file.len()).unwrap());
    let size = u32::try_from(directory.len()).unwrap();
    file.extend(directory);
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    file.extend([size.to_le_bytes(), start.to_le_bytes()].concat());
    file.extend([0; 2]);
    file
}
