#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memwarden_lab::fuzzing::pickle(bytes));
