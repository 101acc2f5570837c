use std::fs::File;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::*;
use crate::region::config::{HugePages, RegionLayout};

const SLOTS: u64 = 200;

fn geometry() -> Geometry {
    let layout = RegionLayout {
        areas: Areas::PerRank,
        area_bytes: 1 << 20,
        slots: SLOTS,
        slot_bytes: 4096,
    };
    Geometry::of(layout, 3, HugePages::Off).unwrap()
}

fn tag() -> Tag {
    Tag {
        fingerprint: Fingerprint(u128::MAX / 3),
        nonce: 5,
        hash_seed: 6,
        maker: 2,
        name_kept: false,
    }
}

/// A header in a file, and the file.
fn header() -> (Header, File) {
    let geometry = geometry();
    let file = tempfile::tempfile().unwrap();
    file.set_len(geometry.header_bytes).unwrap();
    (
        Header::map(&file, geometry.header_bytes, SLOTS).unwrap(),
        file,
    )
}

#[test]
fn what_one_rank_describes_another_finds_equal() {
    let (header, file) = header();
    assert_eq!(header.phase(), Ok(Phase::Writing));
    header.describe(&geometry(), &tag());
    header.set_phase(Phase::Described);
    let other = Header::map_words(&file).unwrap();
    assert_eq!(other.phase(), Ok(Phase::Described));
    assert_eq!(other.compare(&geometry(), tag().fingerprint, false), Ok(()));
    assert_eq!((other.nonce(), other.hash_seed()), (5, 6));
    assert_eq!(other.maker(&geometry()), Ok(2));
}

#[test]
fn each_thing_that_differs_is_named() {
    let (header, _file) = header();
    header.describe(&geometry(), &tag());
    let ours = geometry();
    let compare = |geometry: &Geometry| {
        header
            .compare(geometry, tag().fingerprint, false)
            .map_err(|difference| difference.field)
    };
    let with = |change: &dyn Fn(&mut Geometry)| {
        let mut geometry = ours;
        change(&mut geometry);
        compare(&geometry)
    };
    assert_eq!(compare(&ours), Ok(()));
    assert_eq!(with(&|it| it.layout.slots += 1), Err("the number of slots"));
    assert_eq!(
        with(&|it| it.layout.slot_bytes += 1),
        Err("the length of a slot")
    );
    assert_eq!(
        with(&|it| it.layout.area_bytes += 1),
        Err("the length of an area")
    );
    assert_eq!(
        with(&|it| it.layout.areas = Areas::Shared),
        Err("whose areas they are")
    );
    assert_eq!(
        with(&|it| it.area_stride += 1),
        Err("the distance of areas")
    );
    assert_eq!(
        with(&|it| it.header_bytes += 1),
        Err("the length of the header")
    );
    assert_eq!(with(&|it| it.ranks += 1), Err("the number of ranks"));
    for bit in [0, 127] {
        let other = Fingerprint(tag().fingerprint.0 ^ 1 << bit);
        let difference = header.compare(&ours, other, false).unwrap_err();
        assert!(
            difference.field.starts_with("the fingerprint"),
            "{difference:?}"
        );
    }
    let difference = header.compare(&ours, tag().fingerprint, true).unwrap_err();
    assert_eq!(difference.field, "whether the name is kept");
}

#[test]
fn the_first_who_gives_up_is_heard() {
    let (header, _file) = header();
    assert_eq!(header.failure(), None);
    header.fail(1, Reason::NoSpace);
    header.fail(0, Reason::Other);
    assert_eq!(header.failure(), Some((1, Reason::NoSpace)));
}

#[test]
fn every_change_ends_a_wait() {
    let (header, file) = header();
    let other = Header::map_words(&file).unwrap();
    let identity = Identity {
        device: 1,
        inode: 2,
        nonce: 3,
    };
    let changes: [&dyn Fn(); 3] = [
        &|| other.set_phase(Phase::Sized),
        &|| other.set_stage(1, Stage::Arrived, identity),
        &|| other.fail(1, Reason::Other),
    ];
    for change in changes {
        let seen = header.changes();
        change();
        assert_ne!(header.changes(), seen);
        // A wait for what has happened already is none; a test that hangs here fails.
        header.wait(seen, Duration::from_secs(3600));
    }
    assert_eq!(header.stage(1), Ok(Stage::Arrived));
    assert_eq!(header.identity(1), identity);
}

#[test]
fn a_waiting_rank_is_woken() {
    let (header, file) = header();
    let other = Header::map_words(&file).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while header.phase() != Ok(Phase::Sized) {
                let seen = header.changes();
                if header.phase() != Ok(Phase::Sized) {
                    header.wait(seen, Duration::from_secs(3600));
                }
            }
        });
        other.set_phase(Phase::Sized);
    });
}

#[test]
fn marks_are_of_one_slot_each_and_seen_by_all() {
    let (header, file) = header();
    let other = Header::map(&file, geometry().header_bytes, SLOTS).unwrap();
    for slot in [0, 63, 64, SLOTS - 1] {
        assert_eq!(header.set_failed(slot, true), Some(()));
        let marked: Vec<_> = (0..SLOTS)
            .filter(|slot| other.is_failed(*slot).unwrap())
            .collect();
        assert_eq!(marked, [slot]);
        assert_eq!(other.set_failed(slot, false), Some(()));
        assert_eq!(header.is_failed(slot), Some(false));
    }
    assert_eq!(header.set_failed(SLOTS, true), None);
    assert_eq!(header.is_failed(u64::MAX), None);
}

#[test]
fn a_header_shorter_than_its_marks_is_refused() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    assert!(Header::map(&file, 8192, 1).is_err());
    assert!(Header::map(&file, 4096, 0).is_err());
}

/// The places of the words that a rank compares with its own.
fn compared() -> Vec<usize> {
    let long = [
        offset_of!(Words, magic),
        offset_of!(Words, features),
        offset_of!(Words, fingerprint),
        offset_of!(Words, fingerprint) + 8,
        offset_of!(Words, header_bytes),
        offset_of!(Words, area_bytes),
        offset_of!(Words, area_stride),
        offset_of!(Words, slots),
        offset_of!(Words, slot_bytes),
    ];
    let short = [
        offset_of!(Words, layout_version),
        offset_of!(Words, word_bytes),
        offset_of!(Words, ranks),
        offset_of!(Words, areas),
        offset_of!(Words, name_kept),
    ];
    let long = long.into_iter().flat_map(|at| at..at + 8);
    long.chain(short.into_iter().flat_map(|at| at..at + 4))
        .collect()
}

/// Reads everything that there is to read, and says whether it is what `geometry` describes.
fn read_all(header: &Header) -> bool {
    let geometry = geometry();
    if let Ok(maker) = header.maker(&geometry) {
        assert!(maker < geometry.ranks);
    }
    for rank in 0..MAX_RANKS {
        // Any answer will do, but for a panic.
        let _ = (header.stage(rank), header.identity(rank));
    }
    let _ = (
        header.phase(),
        header.failure(),
        header.keeps_name(),
        header.nonce(),
    );
    assert!((0..SLOTS).all(|slot| header.is_failed(slot).is_some()));
    header.compare(&geometry, tag().fingerprint, false).is_ok()
}

proptest! {
    #[test]
    fn rubbish_is_never_taken_for_a_region(bytes in prop::collection::vec(any::<u8>(), 8192 + 32)) {
        let (header, file) = header();
        file.write_all_at(&bytes, 0).unwrap();
        // The magic number alone makes an accident one of 2^64.
        prop_assert!(!read_all(&header));
    }

    #[test]
    fn one_wrong_byte_is_seen_where_it_matters(at in 0..8192_usize, flip in 1..=255_u8) {
        let (header, file) = header();
        header.describe(&geometry(), &tag());
        prop_assert!(read_all(&header));
        let mut byte = [0];
        file.read_exact_at(&mut byte, at as u64).unwrap();
        file.write_all_at(&[byte[0] ^ flip], at as u64).unwrap();
        prop_assert_eq!(read_all(&header), !compared().contains(&at));
    }
}
