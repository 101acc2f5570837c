//! What the engine costs without Python around it: `cargo bench -p kvferry`, a short look by default.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `KVFERRY_BENCH_RESIDENT` | `10000,100000,1000000` | chunks in the tier |
//! | `KVFERRY_BENCH_PINNED` | `0,25,99` | percent of them pinned |
//! | `KVFERRY_BENCH_THREADS` | `1,2,4` | threads that read at once |
//! | `KVFERRY_BENCH_MS` | `300` | how long each measurement takes |

mod bookkeeping;
mod readers;
mod tier;

use criterion::Criterion;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    bookkeeping::bench(&mut criterion);
    readers::bench(&mut criterion);
    criterion.final_summary();
}
