//! A writer of small pickles, as CPython (protocol 4) and PyTorch's C++ (protocol 2) write them.

/// A value to write.
#[derive(Clone, Debug)]
pub(crate) enum Py {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Py>),
    Tuple(Vec<Py>),
    Dict(Vec<(Py, Py)>),
}

/// A dictionary with text keys.
pub(crate) fn dict<const N: usize>(pairs: [(&str, Py); N]) -> Py {
    Py::Dict(pairs.into_iter().map(|(key, value)| (Py::from(key), value)).collect())
}

pub(crate) fn list(items: impl IntoIterator<Item = Py>) -> Py {
    Py::List(items.into_iter().collect())
}

impl From<&str> for Py {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for Py {
    fn from(value: u64) -> Self {
        Self::Int(value.into())
    }
}

impl From<bool> for Py {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// The bytes of a pickle of protocol 2 or 4.
pub(crate) fn write(value: &Py, protocol: u8) -> Vec<u8> {
    let mut writer = Writer { out: vec![0x80, protocol], memo: Vec::new(), protocol };
    if protocol >= 4 {
        writer.out.push(0x95);
        writer.out.extend([0; 8]);
    }
    writer.value(value);
    writer.out.push(b'.');
    if protocol >= 4 {
        let len = u64::try_from(writer.out.len() - 11).unwrap();
        writer.out[3..11].copy_from_slice(&len.to_le_bytes());
    }
    writer.out
}

struct Writer {
    out: Vec<u8>,
    /// Texts already in the memo; each text is written once, as both picklers do.
    memo: Vec<Option<String>>,
    protocol: u8,
}

impl Writer {
    fn remember(&mut self, text: Option<&str>) {
        let slot = u8::try_from(self.memo.len());
        self.memo.push(text.map(str::to_owned));
        match (self.protocol, slot) {
            (4.., _) => self.out.push(0x94),
            (_, Ok(slot)) => self.out.extend([b'q', slot]),
            (_, Err(_)) => {
                self.out.push(b'r');
                self.out.extend(u32::try_from(self.memo.len() - 1).unwrap().to_le_bytes());
            }
        }
    }

    fn value(&mut self, value: &Py) {
        match value {
            Py::None => self.out.push(b'N'),
            Py::Bool(value) => self.out.push(if *value { 0x88 } else { 0x89 }),
            Py::Float(value) => {
                self.out.push(b'G');
                self.out.extend(value.to_be_bytes());
            }
            Py::Int(value) => self.int(*value),
            Py::Text(text) => self.text(text),
            Py::List(items) => {
                self.out.push(b']');
                self.remember(None);
                if !items.is_empty() {
                    self.out.push(b'(');
                    items.iter().for_each(|item| self.value(item));
                    self.out.push(b'e');
                }
            }
            Py::Tuple(items) => {
                self.out.push(b'(');
                items.iter().for_each(|item| self.value(item));
                self.out.push(b't');
                self.remember(None);
            }
            Py::Dict(pairs) => {
                self.out.push(b'}');
                self.remember(None);
                self.out.push(b'(');
                for (key, value) in pairs {
                    self.value(key);
                    self.value(value);
                }
                self.out.push(b'u');
            }
        }
    }

    fn int(&mut self, value: i128) {
        if let Ok(value) = u8::try_from(value) {
            self.out.extend([b'K', value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.out.push(b'M');
            self.out.extend(value.to_le_bytes());
        } else if let Ok(value) = i32::try_from(value) {
            self.out.push(b'J');
            self.out.extend(value.to_le_bytes());
        } else {
            let bytes = value.to_le_bytes();
            // The fewest bytes that keep the sign: 2^64-1 takes nine.
            let len = (1..=16).find(|len| {
                let shift = 128 - 8 * len;
                (value << shift) >> shift == value
            });
            let len = len.unwrap();
            self.out.extend([0x8a, u8::try_from(len).unwrap()]);
            self.out.extend(&bytes[..usize::try_from(len).unwrap()]);
        }
    }

    fn text(&mut self, text: &str) {
        let known = self.memo.iter().position(|known| known.as_deref() == Some(text));
        if let Some(known) = known {
            match u8::try_from(known) {
                Ok(known) => self.out.extend([b'h', known]),
                Err(_) => {
                    self.out.push(b'j');
                    self.out.extend(u32::try_from(known).unwrap().to_le_bytes());
                }
            }
            return;
        }
        match (self.protocol, u8::try_from(text.len())) {
            (4.., Ok(len)) => self.out.extend([0x8c, len]),
            _ => {
                self.out.push(b'X');
                self.out.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
            }
        }
        self.out.extend(text.as_bytes());
        self.remember(Some(text));
    }
}
