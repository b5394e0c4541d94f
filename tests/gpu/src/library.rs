//! Libraries of the driver, opened at run time.
#![expect(unsafe_code, reason = "NVML and CUDA are C libraries")]

use std::time::Instant;

use anyhow::Context as _;
use libloading::Library;

/// Arguments of a call. All arguments of NVML and of the CUDA calls used here are integers or pointers, each of which is
/// in a register on x86-64 and on aarch64; a function ignores the registers beyond its arguments.
const REGISTERS: usize = 6;

/// A C function with up to six arguments that are integers or pointers, and a result of 32 bits.
type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32;

/// A library of the driver.
#[derive(Debug)]
pub(crate) struct Driver(Library);

/// The outcome of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// The function's return code.
    pub(crate) code: u32,
    /// How long the call took, in microseconds.
    pub(crate) micros: f64,
}

/// Memory that a call writes: zeros at first, aligned to eight bytes.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    words: Vec<u64>,
    size: usize,
}

impl Driver {
    /// Opens a library, by its name or path.
    ///
    /// # Errors
    /// The loader's message: the library does not exist or cannot be loaded.
    pub(crate) fn open(name: &str) -> anyhow::Result<Self> {
        // SAFETY: the libraries of the driver, and the fakes in their place, have initializers that may run here.
        let library = unsafe { Library::new(name) }.with_context(|| format!("{name} cannot be loaded"))?;
        Ok(Self(library))
    }

    /// Whether the library has a function of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<libloading::Symbol<'_, Function>> {
        // SAFETY: the symbol is only called by `call`, whose callers pass the arguments of the header.
        unsafe { self.0.get(name.as_bytes()) }.ok()
    }

    /// Calls a function; `None` where the library does not have it.
    ///
    /// The caller passes the arguments of the function's declaration in the driver's header: pointers lead to buffers
    /// that are at least as large as the function writes.
    pub(crate) fn call(&self, name: &str, arguments: &[usize]) -> Option<Outcome> {
        let function = self.find(name)?;
        let mut registers = [0_usize; REGISTERS];
        for (register, argument) in registers.iter_mut().zip(arguments) {
            *register = *argument;
        }
        let [a, b, c, d, e, f] = registers;
        let begun = Instant::now();
        // SAFETY: see above; buffers outlive the call because their owners are borrowed by the caller.
        let code = unsafe { function(a, b, c, d, e, f) };
        Some(Outcome { code, micros: begun.elapsed().as_secs_f64() * 1e6 })
    }
}

impl Buffer {
    /// A buffer of this many bytes.
    pub(crate) fn new(size: usize) -> Self {
        Self { words: vec![0; size.div_ceil(8).max(1)], size }
    }

    /// Its address, as an argument of a call.
    pub(crate) fn address(&mut self) -> usize {
        self.words.as_mut_ptr().expose_provenance()
    }

    /// Its content.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_ne_bytes()).take(self.size).collect()
    }

    /// Writes a number of 32 bits at an offset in bytes.
    pub(crate) fn put_u32(&mut self, offset: usize, number: u32) {
        self.put(offset, &number.to_ne_bytes());
    }

    /// Writes a number of 64 bits at an offset in bytes.
    pub(crate) fn put_u64(&mut self, offset: usize, number: u64) {
        self.put(offset, &number.to_ne_bytes());
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            if let Some(word) = self.words.get_mut(at / 8) {
                let mut content = word.to_ne_bytes();
                content[at % 8] = *byte;
                *word = u64::from_ne_bytes(content);
            }
        }
    }

    /// The number of 32 bits at an offset in bytes; 0 beyond the end.
    pub(crate) fn u32_at(&self, offset: usize) -> u32 {
        u32::from_ne_bytes(self.array(offset))
    }

    /// The number of 64 bits at an offset in bytes; 0 beyond the end.
    pub(crate) fn u64_at(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.array(offset))
    }

    /// The text at an offset in bytes, up to its terminator.
    pub(crate) fn text_at(&self, offset: usize, size: usize) -> String {
        let bytes: Vec<u8> =
            self.bytes().into_iter().skip(offset).take(size).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn array<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut array = [0; N];
        for (to, at) in array.iter_mut().zip(offset..) {
            let word = self.words.get(at / 8).copied().unwrap_or(0);
            *to = word.to_ne_bytes()[at % 8];
        }
        array
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_where_they_were_written() {
        let mut buffer = Buffer::new(20);
        buffer.put_u32(4, 7);
        buffer.put_u64(6, u64::MAX);
        assert_eq!(buffer.bytes().len(), 20);
        assert_eq!(buffer.u32_at(4), 0xFFFF_0007);
        assert_eq!(buffer.u64_at(12), 0xFFFF);
        assert_eq!(buffer.u64_at(400), 0);
    }

    #[test]
    fn a_text_ends_at_its_terminator() {
        let mut buffer = Buffer::new(8);
        buffer.put(1, b"ab\0c");
        assert_eq!(buffer.text_at(1, 7), "ab");
        assert_eq!(buffer.text_at(1, 1), "a");
    }

    #[test]
    fn a_library_that_is_absent_is_an_error_and_a_function_is_none() {
        assert!(Driver::open("libno-such-driver.so.1").is_err());
        let libc = Driver::open("libc.so.6").unwrap();
        assert!(libc.call("no_such_function", &[]).is_none());
        // toupper(3): an integer in, an integer out.
        assert_eq!(libc.call("toupper", &[97]).unwrap().code, 65);
    }
}
