use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::region::config::{Areas, Fingerprint, Geometry, HugePages, RegionLayout};
use crate::region::header::Tag;

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kvferry-engine");
    (directory, path)
}

/// Makes a file with the header of a region that nobody uses.
fn leave_region(path: &Path, name_kept: bool) {
    let layout = RegionLayout {
        areas: Areas::Shared,
        area_bytes: 1,
        slots: 1,
        slot_bytes: 1,
    };
    let geometry = Geometry::of(layout, 1, HugePages::Off).unwrap();
    let file = make(path).unwrap().unwrap();
    file.set_len(geometry.header_bytes).unwrap();
    let header = Header::map(&file, geometry.header_bytes, 1).unwrap();
    let tag = Tag {
        fingerprint: Fingerprint(0),
        nonce: 0,
        hash_seed: 0,
        maker: 0,
        name_kept,
    };
    header.describe(&geometry, &tag);
}

#[test]
fn a_leftover_is_removed() {
    let (_directory, path) = place();
    let leave: [&dyn Fn(); 3] = [
        &|| drop(make(&path).unwrap().unwrap()),
        &|| make(&path).unwrap().unwrap().set_len(10_000).unwrap(),
        &|| leave_region(&path, true),
    ];
    for leave in leave {
        leave();
        assert!(make(&path).unwrap().is_none());
        assert!(matches!(find(&path, Remove::No), Ok(Found::Leftover)));
        assert!(matches!(find(&path, Remove::Yes), Ok(Found::Removed)));
        assert!(matches!(find(&path, Remove::Yes), Ok(Found::Nothing)));
    }
}

#[test]
fn a_file_in_use_is_never_removed() {
    let (directory, path) = place();
    for seat in [Seat::Maker, Seat::Rank(0), Seat::Rank(63)] {
        let file = make(&path).unwrap().unwrap();
        assert!(take(&path, &file, seat).unwrap());
        assert!(matches!(find(&path, Remove::Yes), Ok(Found::Used(_))));
        assert!(sweep(directory.path()).is_empty());
        assert!(is_named(&path, &file).unwrap());
        remove_own(&path, &file).unwrap();
        assert!(!is_named(&path, &file).unwrap());
    }
}

#[test]
fn a_mapping_keeps_the_locks_of_a_closed_file() {
    let (_directory, path) = place();
    let file = make(&path).unwrap().unwrap();
    file.set_len(WORDS_BYTES as u64).unwrap();
    assert!(take(&path, &file, Seat::Rank(1)).unwrap());
    let header = Header::map_words(&file).unwrap();
    drop(file);
    assert!(matches!(find(&path, Remove::Yes), Ok(Found::Used(_))));
    drop(header);
    assert!(matches!(find(&path, Remove::Yes), Ok(Found::Removed)));
}

#[test]
fn a_seat_is_taken_once() {
    let (_directory, path) = place();
    let file = make(&path).unwrap().unwrap();
    let Ok(Found::Leftover) = find(&path, Remove::No) else {
        panic!("nobody has locked it")
    };
    assert!(take(&path, &file, Seat::Rank(3)).unwrap());
    let Ok(Found::Used(other)) = find(&path, Remove::No) else {
        panic!("rank 3 has locked it")
    };
    assert!(!take(&path, &other, Seat::Rank(3)).unwrap());
    assert!(take(&path, &other, Seat::Rank(4)).unwrap());
    assert!(take(&path, &other, Seat::Maker).unwrap());
    assert_eq!(
        holder(&path, &other, Seat::Rank(3)).unwrap(),
        Holder::Member
    );
    assert_eq!(holder(&path, &file, Seat::Rank(4)).unwrap(), Holder::Member);
    assert_eq!(holder(&path, &file, Seat::Rank(5)).unwrap(), Holder::Nobody);
    // One's own lock is none that one would have to wait for.
    assert_eq!(holder(&path, &file, Seat::Rank(3)).unwrap(), Holder::Nobody);
    drop(other);
    assert_eq!(holder(&path, &file, Seat::Maker).unwrap(), Holder::Nobody);
}

#[test]
fn whoever_is_about_to_remove_is_no_member() {
    let (_directory, path) = place();
    let file = make(&path).unwrap().unwrap();
    let other = File::options().read(true).write(true).open(&path).unwrap();
    assert!(lock(&other, 0, 0).unwrap());
    assert!(!take(&path, &file, Seat::Maker).unwrap());
    assert_eq!(
        holder(&path, &file, Seat::Rank(2)).unwrap(),
        Holder::Remover
    );
}

#[test]
fn a_file_that_is_no_region_is_left_alone() {
    let (directory, path) = place();
    let content = |what: &Result<Found, RegionError>, expected: Foreign| matches!(what, Err(RegionError::Foreign { what, .. }) if *what == expected);
    fs::write(&path, b"my thesis").unwrap();
    assert!(content(&find(&path, Remove::Yes), Foreign::Content));
    fs::write(&path, b"short").unwrap();
    assert!(content(&find(&path, Remove::Yes), Foreign::Content));
    assert!(sweep(directory.path()).is_empty());
    assert_eq!(fs::read(&path).unwrap(), b"short");
    fs::remove_file(&path).unwrap();

    let target = directory.path().join("target");
    fs::write(&target, b"").unwrap();
    symlink(&target, &path).unwrap();
    assert!(content(&find(&path, Remove::Yes), Foreign::NoFile));
    assert!(make(&path).unwrap().is_none());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(content(&find(&path, Remove::Yes), Foreign::NoFile));
    assert!(target.exists());
}

#[test]
fn a_sweep_takes_leftovers_alone() {
    let (directory, path) = place();
    let [region, empty, other, kept, used] = [
        "kvferry-a",
        "kvferry-b",
        "other",
        "kvferry-kept",
        "kvferry-used",
    ]
    .map(|name| directory.path().join(name));
    leave_region(&region, false);
    drop(make(&empty).unwrap());
    drop(make(&other).unwrap());
    leave_region(&kept, true);
    let file = make(&used).unwrap().unwrap();
    assert!(take(&used, &file, Seat::Rank(0)).unwrap());
    let mut removed = sweep(directory.path());
    removed.sort();
    assert_eq!(removed, [region, empty]);
    assert!([other, kept, used].iter().all(|path| path.exists()));
    assert!(sweep(&path).is_empty());
}
