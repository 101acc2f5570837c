//! Bookkeeping for KV-cache offloading.
#![forbid(unsafe_code)]
