use crate::{Config, KeyHashing, Keys, LookupResult, Manager, StoreOutcome, StoreRejected};

fn store(manager: &mut Manager, keys: &[Vec<u8>]) -> Option<StoreRejected> {
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let outcome = manager.prepare_store(Keys::from(keys.as_slice()), None);
    match outcome.expect("keys that an engine holds") {
        StoreOutcome::Stored(output) => {
            let done = manager.complete_store(output.ticket, true);
            assert_eq!(done.applied, keys.len());
            None
        }
        StoreOutcome::Rejected(why) => Some(why),
    }
}

#[test]
fn one_call_may_replace_the_whole_tier() {
    for capacity in (1..200).chain([1000, 4096, 30_000]) {
        let config = Config::new(capacity).hashing(KeyHashing::Seeded(capacity as u64));
        let mut manager = Manager::new(config).unwrap();
        for round in 0..8 {
            let key = |i: usize| format!("{round} {i}").into_bytes();
            let keys: Vec<_> = (0..capacity).map(key).collect();
            assert_eq!(store(&mut manager, &keys), None, "capacity {capacity}");
            manager.check_invariants().unwrap();
            for key in &keys {
                assert_eq!(manager.lookup(key), Ok(LookupResult::Hit));
            }
        }
    }
}

#[test]
fn a_store_that_the_index_rejects_leaves_every_victim_where_it_was() {
    // Uniform keys are hashed by their ends alone: these all share two buckets of eight.
    let key = |name: &str, i: usize| format!("headhead{name}{i:02}tailtail").into_bytes();
    let mut manager = Manager::new(Config::new(17).hashing(KeyHashing::Uniform)).unwrap();
    let old: Vec<_> = (0..16).map(|i| key("a", i)).collect();
    assert_eq!(store(&mut manager, &old), None);
    let lists = manager.debug_lists();

    let new: Vec<_> = (0..17).map(|i| key("b", i)).collect();
    assert_eq!(store(&mut manager, &new), Some(StoreRejected::IndexFull));

    assert_eq!(manager.debug_lists(), lists);
    assert_eq!(manager.stats().declined_index, 1);
    manager.check_invariants().unwrap();
    for key in &old {
        assert_eq!(manager.lookup(key), Ok(LookupResult::Hit));
    }
    let keys: Vec<&[u8]> = old.iter().map(Vec::as_slice).collect();
    assert_eq!(manager.drop_keys(Keys::from(keys.as_slice())), Ok(16));
    assert_eq!(store(&mut manager, &new[..16]), None, "sixteen fit");
    manager.check_invariants().unwrap();
}
