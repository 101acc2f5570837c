//! Prints how often a full table has no room for a key; asserts nothing. To run it in release mode:
//!
//! ```text
//! cargo test --release -p kvferry --lib -- --ignored --nocapture prints_how_often_there_is_no_room
//! ```

use super::*;

const REPLACEMENTS: usize = 20_000_000;

#[test]
#[ignore = "a measurement of a minute"]
fn prints_how_often_there_is_no_room() {
    eprintln!("capacity  load  no room in {REPLACEMENTS} replacements");
    for capacity in [
        13, 16, 18, 20, 24, 25, 30, 36, 48, 60, 100, 300, 1000, 100_000,
    ] {
        let mut table = Table::new(capacity, 1);
        let mut none = 0;
        for slot in 0..capacity {
            none += usize::from(table.enter(slot).is_err());
        }
        for _ in 0..REPLACEMENTS {
            let slot = table.numbers.below(capacity);
            table.remove(slot);
            none += usize::from(table.enter(slot).is_err());
        }
        let ways = table.ways();
        let load = f64::from(capacity) / f64::from(ways);
        eprintln!("{capacity:>8}  {load:.2}  {none}");
    }
}
