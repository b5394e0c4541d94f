#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memwarden::fuzzing::cdi(bytes));
