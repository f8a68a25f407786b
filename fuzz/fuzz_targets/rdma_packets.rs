#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ringfold_fuzz::targets::rdma_packets(data));
