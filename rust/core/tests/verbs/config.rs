//! What an engine can be built with, and that everything else is refused before it does harm.

use std::process::Command;

use kvferry::{Config, ConfigError, KeyHashing, LookupResult, Manager, PolicyKind, Storage};

use crate::common::{Chunks, engine, look, store};

const MAX_CAPACITY: u32 = 1 << 30;

fn refusal(config: Config) -> ConfigError {
    let storage = Storage::new(&config).expect_err("no storage either");
    let error = Manager::new(config).expect_err("impossible");
    assert_eq!(storage, error);
    error
}

#[test]
fn a_capacity_of_nothing_or_beyond_the_slot_numbers_is_refused() {
    for capacity in [0, MAX_CAPACITY as usize + 1, u32::MAX as usize, usize::MAX] {
        let max = MAX_CAPACITY;
        assert_eq!(
            refusal(Config::new(capacity)),
            ConfigError::Capacity { capacity, max }
        );
    }
}

#[test]
fn a_key_length_of_nothing_or_too_much_is_refused() {
    for key_bytes in [0, 1025, usize::MAX] {
        let refused = refusal(Config::new(4).key_bytes(key_bytes));
        assert_eq!(
            refused,
            ConfigError::KeyBytes {
                key_bytes,
                max: 1024
            }
        );
    }
}

#[test]
fn a_group_that_is_neither_four_bytes_nor_none_is_refused() {
    for group_bytes in [1, 2, 3, 5, 8, usize::MAX] {
        let refused = refusal(Config::new(4).group_bytes(group_bytes));
        assert_eq!(refused, ConfigError::GroupBytes { group_bytes });
    }
}

#[test]
fn an_admission_tracker_that_could_hold_nothing_is_refused() {
    for store_threshold in [2, u32::MAX] {
        let config = Config::new(4).store_threshold(store_threshold);
        let refused = refusal(config.max_tracker_size(0));
        assert_eq!(refused, ConfigError::Tracker { store_threshold });
    }
    for store_threshold in [0, 1] {
        let config = Config::new(4).store_threshold(store_threshold);
        engine(config.max_tracker_size(0));
    }
    engine(
        Config::new(4)
            .store_threshold(2)
            .max_tracker_size(usize::MAX),
    );
}

#[test]
fn a_touch_log_of_nothing_or_of_gigabytes_is_refused() {
    let max = 1 << 20;
    for touch_log_capacity in [0, max + 1, usize::MAX] {
        let refused = refusal(Config::new(4).touch_log_capacity(touch_log_capacity));
        assert_eq!(
            refused,
            ConfigError::TouchLog {
                touch_log_capacity,
                max
            }
        );
    }
    engine(Config::new(4).touch_log_capacity(1));
    engine(Config::new(4).touch_log_capacity(max));
}

#[test]
fn the_smallest_engine_works() {
    for policy in PolicyKind::ALL {
        let config = Config::new(1).policy(policy).key_bytes(1).group_bytes(0);
        let mut manager = engine(config);
        assert_eq!(manager.policy(), policy);
        assert_eq!((manager.capacity(), manager.key_bytes()), (1, 1));
        for n in 0..=255u8 {
            let evicted = store(&mut manager, &Chunks::of(&[&[n]]));
            assert_eq!(evicted.len(), usize::from(n > 0));
            assert_eq!(manager.lookup(&[n]), Ok(LookupResult::Hit));
            look(&manager);
        }
    }
}

#[test]
fn every_limit_at_its_most_is_still_an_engine() {
    let config = Config::new(3)
        .key_bytes(1024)
        .max_event_keys(usize::MAX)
        .pending_timeout_us(Some(u64::MAX))
        .store_threshold(u32::MAX)
        .max_tracker_size(usize::MAX)
        .hashing(KeyHashing::Seeded(u64::MAX))
        .events(true);
    let mut manager = engine(config);
    manager.advance_to(u64::MAX);
    assert_eq!(manager.expire_pending(u64::MAX), 0);
    let output = crate::common::begin_store(&mut manager, &Chunks::numbered([1]));
    assert!(output.indices.is_empty(), "it has been offered once");
    look(&manager);
}

#[test]
fn policies_have_names_that_lead_back_to_them() {
    for policy in PolicyKind::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
        assert_eq!(policy.to_string(), policy.name());
    }
    let error = "mru".parse::<PolicyKind>().expect_err("there is none");
    assert_eq!(
        error.to_string(),
        "unknown policy \"mru\": known are lru, arc"
    );
}

/// Set in the process that this test starts, whose memory is limited.
const LIMITED: &str = "KVFERRY_TEST_MEMORY_IS_LIMITED";

/// Each array of an engine is asked for at sizes at which the limit refuses it, and at sizes at
/// which it refuses the next one.
#[test]
fn an_engine_that_does_not_fit_memory_is_refused_and_not_fatal() {
    if std::env::var_os(LIMITED).is_none() {
        let test = "config::an_engine_that_does_not_fit_memory_is_refused_and_not_fatal";
        let this = std::env::current_exe().expect("the test knows itself");
        let child = Command::new("sh")
            .args(["-c", "ulimit -v 300000 && exec \"$0\" \"$@\""])
            .arg(this)
            .args(["--exact", test, "--test-threads", "1"])
            .env(LIMITED, "1")
            .output()
            .expect("a shell");
        assert!(child.status.success(), "{child:?}");
        return;
    }
    let (mut built, mut refused) = (0, 0);
    for policy in PolicyKind::ALL {
        let mut capacity = 300_000;
        while capacity < MAX_CAPACITY as usize {
            match Manager::new(Config::new(capacity).policy(policy)) {
                Ok(_) => built += 1,
                Err(ConfigError::Memory { capacity: told, .. }) => {
                    assert_eq!(told, capacity);
                    refused += 1;
                }
                Err(other) => panic!("{other}"),
            }
            capacity += capacity / 6;
        }
        let config = Config::new(MAX_CAPACITY as usize).key_bytes(1024);
        let refusal = Manager::new(config.policy(policy));
        assert!(matches!(refusal, Err(ConfigError::Memory { .. })));
    }
    assert!(
        built > 5 && refused > 50,
        "{built} built, {refused} refused"
    );
}
