//! Ranks as threads: locks belong to open files, so that they behave as processes do.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::region::config::{Areas, Fingerprint, HugePages, PrivateConfig, RegionLayout};
use crate::region::{RegionProgress, config};

fn config(directory: &Path, rank: usize, ranks: usize) -> RegionConfig {
    let layout = RegionLayout {
        areas: Areas::PerRank,
        area_bytes: 64 << 10,
        slots: 16,
        slot_bytes: 4096,
    };
    let mut config = RegionConfig::new("test", rank, ranks, layout, Fingerprint(7));
    config.directory = directory.to_owned();
    config.memory.huge_pages = HugePages::Off;
    config
}

fn quiet(_: RegionProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn entries(directory: &TempDir) -> usize {
    fs::read_dir(directory).unwrap().count()
}

/// Opens all ranks at once, and expects that all succeed.
fn open_all(configs: &[RegionConfig]) -> Vec<PinnedRegion> {
    thread::scope(|scope| {
        let open = |config| scope.spawn(move || PinnedRegion::open(config, &mut quiet));
        let ranks: Vec<_> = configs.iter().map(open).collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().unwrap().unwrap())
            .collect()
    })
}

/// A byte of a region.
fn byte(region: &PinnedRegion, at: u64) -> &AtomicU8 {
    assert!(at < region.bytes());
    let address = usize::try_from(region.address() + at).unwrap();
    let byte = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: within the region (asserted), which outlives the borrow; `address` exposes it, and the
    // tests use its bytes with atomics alone.
    unsafe { AtomicU8::from_ptr(byte) }
}

#[test]
fn ranks_that_start_together_share_one_region() {
    let directory = tempfile::tempdir().unwrap();
    for ranks in [1, 2, 4] {
        let configs: Vec<_> = (0..ranks)
            .map(|rank| config(directory.path(), rank, ranks))
            .collect();
        let regions = open_all(&configs);
        assert_eq!(entries(&directory), 0);
        for (rank, region) in regions.iter().enumerate() {
            assert_eq!(region.nonce(), regions[0].nonce());
            assert_eq!(region.hash_seed(), regions[0].hash_seed());
            assert_eq!(region.bytes(), ranks as u64 * (64 << 10));
            region.set_failed(rank as u64, true).unwrap();
            let area = region.rank_area(rank).unwrap();
            assert_eq!(area.bytes, 64 << 10);
            let last = area.address - region.address() + area.bytes - 1;
            byte(region, last).store(u8::try_from(rank).unwrap() + 1, Relaxed);
        }
        for region in &regions {
            assert_eq!(region.rank_area(ranks), None);
            for rank in 0..ranks {
                assert!(region.is_failed(rank as u64).unwrap());
                let last = (rank as u64 + 1) * (64 << 10) - 1;
                assert_eq!(usize::from(byte(region, last).load(Relaxed)), rank + 1);
            }
            assert!(!region.is_failed(ranks as u64).unwrap());
            assert!(matches!(
                region.is_failed(16),
                Err(RegionError::Slot { slots: 16, .. })
            ));
        }
    }
}

#[test]
fn ranks_with_equal_bytes_share_one_area() {
    let directory = tempfile::tempdir().unwrap();
    let shared = |rank| {
        let mut config = config(directory.path(), rank, 2);
        config.layout.areas = Areas::Shared;
        config
    };
    let regions = open_all(&[shared(0), shared(1)]);
    for region in &regions {
        assert_eq!(region.bytes(), 64 << 10);
        assert_eq!(region.rank_area(0), region.rank_area(1));
        assert_eq!(region.report().touched_bytes, 32 << 10);
    }
}

#[test]
fn a_kept_name_is_in_use_until_the_last_rank_ends() {
    let directory = tempfile::tempdir().unwrap();
    let kept = |rank, ranks| {
        let mut config = config(directory.path(), rank, ranks);
        config.keep_name = true;
        config.timeout = Duration::from_secs(20);
        config
    };
    let mut regions = open_all(&[kept(0, 2), kept(1, 2)]);
    assert_eq!(entries(&directory), 1);
    while !regions.is_empty() {
        // First with both ranks alive, then without the first, which may have made the file.
        for open in [PinnedRegion::open, PinnedRegion::create] {
            let refused = open(&kept(0, 2), &mut quiet);
            assert!(
                matches!(refused, Err(RegionError::InUse { .. })),
                "{refused:?}"
            );
        }
        let refused = PinnedRegion::attach(&kept(0, 2), &mut quiet);
        assert!(
            matches!(refused, Err(RegionError::InUse { .. })),
            "{refused:?}"
        );
        regions.remove(0);
    }
    assert_eq!(entries(&directory), 1);
    PinnedRegion::open(&config(directory.path(), 0, 1), &mut quiet).unwrap();
    assert_eq!(entries(&directory), 0);
}

#[test]
fn two_engines_with_names_of_their_own_do_not_meet() {
    let directory = tempfile::tempdir().unwrap();
    let named = |name: &str| {
        let mut config = config(directory.path(), 0, 1);
        config.name = name.to_owned();
        config.keep_name = true;
        config
    };
    let first = PinnedRegion::create(&named("a"), &mut quiet).unwrap();
    let second = PinnedRegion::create(&named("b"), &mut quiet).unwrap();
    assert_eq!(entries(&directory), 2);
    assert_ne!(first.nonce(), second.nonce());
    byte(&first, 0).store(1, Relaxed);
    assert_eq!(byte(&second, 0).load(Relaxed), 0);
}

/// Starts the first of two ranks and, while it waits, calls `meanwhile`; then lets it stop.
fn while_waiting(directory: &Path, meanwhile: impl FnOnce()) {
    let (arrived, wait) = std::sync::mpsc::channel();
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            PinnedRegion::create(&config(directory, 0, 2), &mut |progress| {
                if progress.stage == RegionStage::Waiting {
                    arrived.send(()).ok();
                }
                if stop.load(Relaxed) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
        });
        wait.recv().unwrap();
        meanwhile();
        stop.store(true, Relaxed);
        let stopped = first.join().unwrap();
        let expected = RegionStage::Waiting;
        assert!(
            matches!(stopped, Err(RegionError::Stopped { stage }) if stage == expected),
            "{stopped:?}"
        );
    });
}

#[test]
fn another_engine_of_the_same_name_is_told_and_disturbs_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    while_waiting(at, || {
        let refused = PinnedRegion::create(&config(at, 0, 2), &mut quiet);
        assert!(
            matches!(refused, Err(RegionError::InUse { .. })),
            "{refused:?}"
        );
        let refused = PinnedRegion::open(&config(at, 0, 2), &mut quiet);
        assert!(
            matches!(refused, Err(RegionError::RankTaken { rank: 0, .. })),
            "{refused:?}"
        );
        let mut other = config(at, 1, 2);
        other.fingerprint = Fingerprint(8);
        let refused = PinnedRegion::open(&other, &mut quiet);
        assert!(
            matches!(refused, Err(RegionError::Mismatch { .. })),
            "{refused:?}"
        );
        let refused = PinnedRegion::attach(&config(at, 1, 3), &mut quiet);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("the distance of areas") || text.contains("the number of ranks"));
        assert_eq!(entries(&directory), 1);
    });
    assert_eq!(entries(&directory), 0);
}

#[test]
fn a_rank_that_waits_in_vain_says_for_whom() {
    let directory = tempfile::tempdir().unwrap();
    let mut short = config(directory.path(), 1, 3);
    short.timeout = Duration::from_millis(1);
    let error = PinnedRegion::create(&short, &mut quiet).unwrap_err();
    assert!(matches!(&error, RegionError::Timeout { missing, .. } if *missing == [0, 2]));
    assert_eq!(entries(&directory), 0);
    let error = PinnedRegion::attach(&short, &mut quiet).unwrap_err();
    assert!(matches!(&error, RegionError::Timeout { missing, .. } if *missing == [0, 2]));
    assert_eq!(entries(&directory), 0);
}

#[test]
fn a_rank_that_gives_up_takes_the_others_with_it() {
    let directory = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        let other =
            scope.spawn(|| PinnedRegion::attach(&config(directory.path(), 1, 2), &mut quiet));
        let mut other_is_there = |progress: RegionProgress| match progress {
            RegionProgress {
                stage: RegionStage::Met,
                ..
            } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let stopped = PinnedRegion::create(&config(directory.path(), 0, 2), &mut other_is_there);
        assert!(matches!(
            stopped,
            Err(RegionError::Stopped {
                stage: RegionStage::Met
            })
        ));
        let error = other.join().unwrap().unwrap_err();
        let RegionError::MemberFailed { rank, reason, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((rank, reason), (0, super::super::Reason::Stopped));
    });
    assert_eq!(entries(&directory), 0);
}

#[test]
fn it_stops_at_every_stage_when_told_to_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut stages = Vec::new();
    let mut listen = |progress: RegionProgress| {
        stages.push(progress.stage);
        ControlFlow::Continue(())
    };
    PinnedRegion::open(&config(directory.path(), 0, 1), &mut listen).unwrap();
    assert!(stages.is_sorted());
    stages.dedup();
    assert!(stages.len() >= 8, "{stages:?}");
    for at in stages {
        let mut stop = |progress: RegionProgress| {
            if progress.stage == at {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let stopped = PinnedRegion::open(&config(directory.path(), 0, 1), &mut stop);
        assert!(
            matches!(stopped, Err(RegionError::Stopped { stage }) if stage == at),
            "{stopped:?}"
        );
        assert_eq!(entries(&directory), 0);
    }
}

#[test]
fn a_maker_that_is_taken_for_a_leftover_begins_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut kept = config(directory.path(), 0, 1);
    kept.keep_name = true;
    let path = kept.path().unwrap();
    let mut made = 0;
    let mut other = None;
    let mut interfere = |progress: RegionProgress| {
        match progress.stage {
            RegionStage::Made => made += 1,
            RegionStage::Searching => other = None,
            _ => {}
        }
        match (progress.stage, made) {
            // The file is removed before it is locked.
            (RegionStage::Made, 1) => {
                let found = claim::find(&path, claim::Remove::Yes);
                assert!(matches!(found, Ok(Found::Removed)), "{found:?}");
            }
            // It stays, but another start is faster to lock it.
            (RegionStage::Made, 2) => {
                let file = File::options().read(true).write(true).open(&path).unwrap();
                assert!(claim::take(&path, &file, Seat::Maker).unwrap());
                other = Some(file);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    };
    let region = PinnedRegion::open(&kept, &mut interfere).unwrap();
    assert_eq!(made, 3);
    assert!(claim::is_named(&path, region.file.as_ref().unwrap()).unwrap());
}

#[test]
fn memory_for_one_process_starts_where_its_pages_do() {
    for huge_pages in [
        HugePages::Off,
        HugePages::Transparent,
        HugePages::Explicit(2 << 20),
    ] {
        let private = PrivateConfig {
            bytes: 5 << 20,
            slots: 5,
            memory: config::MemoryOptions {
                huge_pages,
                ..Default::default()
            },
        };
        let region = PinnedRegion::private(&private, &mut quiet).unwrap();
        assert!(region.bytes() >= 5 << 20);
        let area = region.rank_area(0).unwrap();
        assert_eq!((area.address, area.bytes), (region.address(), 5 << 20));
        byte(&region, region.bytes() - 1).store(1, Relaxed);
        region.set_failed(4, true).unwrap();
        assert!(region.is_failed(4).unwrap());
        if huge_pages != HugePages::Off {
            assert_eq!(region.address() % (2 << 20), 0);
        }
        assert!(region.report().to_string().starts_with("host region of "));
    }
}

#[test]
fn more_than_there_is_is_refused_before_anything_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let mut large = config(directory.path(), 0, 1);
    large.layout.area_bytes = 1 << 50;
    let refused = PinnedRegion::open(&large, &mut quiet);
    assert!(
        matches!(refused, Err(RegionError::NoSpace { .. })),
        "{refused:?}"
    );
    assert_eq!(entries(&directory), 0);
    let private = PrivateConfig {
        bytes: 1 << 46,
        slots: 1,
        memory: config::MemoryOptions::default(),
    };
    let refused = PinnedRegion::private(&private, &mut quiet);
    assert!(
        matches!(refused, Err(RegionError::Memory { .. })),
        "{refused:?}"
    );
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut elsewhere = config(&directory.path().join("missing"), 0, 1);
    let error = PinnedRegion::open(&elsewhere, &mut quiet).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    elsewhere.name = "../test".to_owned();
    let refused = PinnedRegion::open(&elsewhere, &mut quiet);
    assert!(matches!(refused, Err(RegionError::Name { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A maker that is alive, whose header another program has written over in places.
    #[test]
    fn a_damaged_header_ends_in_an_error(
        damage in prop::collection::vec((0..1024_u64, any::<u64>()), 0..4),
        length in prop::option::of(0..40_000_u64),
        phase in 0..5_u32,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut joiner = config(directory.path(), 0, 2);
        joiner.timeout = Duration::ZERO;
        let geometry = Geometry::new(&joiner).unwrap();
        let path = joiner.path().unwrap();
        let file = claim::make(&path).unwrap().unwrap();
        prop_assert!(claim::take(&path, &file, Seat::Maker).unwrap());
        prop_assert!(claim::take(&path, &file, Seat::Rank(1)).unwrap());
        file.set_len(geometry.file_bytes()).unwrap();
        let header = Header::map(&file, geometry.header_bytes, 16).unwrap();
        header.describe(&geometry, &settle::tag(Fingerprint(7), 1, false).unwrap());
        for known in [Phase::Writing, Phase::Described, Phase::Sized, Phase::Complete] {
            if known as u32 == phase {
                header.set_phase(known);
            }
        }
        drop(header);
        for (word, value) in damage {
            file.write_all_at(&value.to_ne_bytes(), word * 8).unwrap();
        }
        if let Some(length) = length {
            file.set_len(length).unwrap();
        }
        let refused = PinnedRegion::attach(&joiner, &mut quiet);
        prop_assert!(refused.is_err());
        // Nobody removes what the maker still holds.
        prop_assert!(claim::is_named(&path, &file).unwrap());
    }
}
