use super::*;

fn layout(areas: Areas, area_bytes: u64) -> RegionLayout {
    RegionLayout {
        areas,
        area_bytes,
        slots: 3,
        slot_bytes: 1000,
    }
}

#[test]
fn areas_lie_behind_the_header_and_apart() {
    let page = rustix::param::page_size() as u64;
    let geometry = Geometry::of(layout(Areas::PerRank, page + 1), 3, HugePages::Off).unwrap();
    assert!(geometry.header_bytes >= 8192 + 8);
    assert_eq!(geometry.header_bytes % page, 0);
    assert_eq!(
        [0, 1, 2].map(|rank| geometry.area_offset(rank)),
        [0, 2 * page, 4 * page]
    );
    assert_eq!(geometry.data_bytes, 6 * page);
    assert_eq!(geometry.file_bytes(), geometry.header_bytes + 6 * page);
}

#[test]
fn huge_pages_align_everything() {
    for (huge_pages, size) in [
        (HugePages::Transparent, 2 << 20),
        (HugePages::Explicit(1 << 30), 1 << 30),
    ] {
        let geometry = Geometry::of(layout(Areas::PerRank, 5000), 2, huge_pages).unwrap();
        assert_eq!(geometry.header_bytes, size);
        assert_eq!(geometry.area_stride, size);
    }
}

#[test]
fn every_page_is_touched_by_one_rank() {
    let page = rustix::param::page_size() as u64;
    for (areas, pages) in [(Areas::PerRank, 5), (Areas::Shared, 11), (Areas::Shared, 2)] {
        for ranks in [1, 2, 3, 4] {
            let layout = RegionLayout {
                areas,
                area_bytes: pages * page,
                slots: 1,
                slot_bytes: 1,
            };
            let geometry = Geometry::of(layout, ranks, HugePages::Off).unwrap();
            let mut end = 0;
            for rank in 0..ranks {
                let (offset, bytes) = geometry.share(rank);
                assert_eq!(offset, end);
                assert_eq!(bytes % page, 0);
                end += bytes;
            }
            assert_eq!(end, geometry.data_bytes);
        }
    }
}

#[test]
fn slots_that_do_not_fit_are_refused() {
    for (area_bytes, slots, slot_bytes) in [(2999, 3, 1000), (0, 0, 1), (100, 0, 1), (100, 1, 0)] {
        let layout = RegionLayout {
            areas: Areas::Shared,
            area_bytes,
            slots,
            slot_bytes,
        };
        let refused = Geometry::of(layout, 1, HugePages::Off);
        assert!(
            matches!(refused, Err(RegionError::Slots { .. })),
            "{layout:?}: {refused:?}"
        );
    }
}

#[test]
fn sizes_that_overflow_are_refused() {
    for (area_bytes, slots, slot_bytes) in [
        (u64::MAX, 1 << 40, 1 << 40),
        (u64::MAX, 1, 1),
        (1 << 62, 1, 1),
        (i64::MAX as u64, 1, 1),
    ] {
        let layout = RegionLayout {
            areas: Areas::PerRank,
            area_bytes,
            slots,
            slot_bytes,
        };
        let refused = Geometry::of(layout, 2, HugePages::Transparent);
        assert!(
            matches!(refused, Err(RegionError::TooLarge { .. })),
            "{layout:?}: {refused:?}"
        );
    }
}

#[test]
fn a_page_size_that_no_page_has_is_refused() {
    for bytes in [0, 1, 3 << 20] {
        let refused = Geometry::of(layout(Areas::Shared, 5000), 1, HugePages::Explicit(bytes));
        assert!(
            matches!(refused, Err(RegionError::HugePageBytes { .. })),
            "{bytes}"
        );
    }
}

#[test]
fn ranks_outside_of_the_engine_are_refused() {
    for (rank, ranks) in [(0, 0), (2, 2), (0, MAX_RANKS + 1)] {
        let layout = layout(Areas::Shared, 5000);
        let config = RegionConfig::new("x", rank, ranks, layout, Fingerprint(0));
        assert!(
            matches!(Geometry::new(&config), Err(RegionError::Ranks { .. })),
            "{rank} {ranks}"
        );
    }
}

#[test]
fn a_name_is_one_part_of_a_path() {
    let path = |name: &str| {
        RegionConfig::new(name, 0, 1, layout(Areas::Shared, 5000), Fingerprint(0)).path()
    };
    assert_eq!(
        path("engine-1.a_B").unwrap(),
        Path::new("/dev/shm/kvferry-engine-1.a_B")
    );
    for name in ["", "a/b", "../x", "a b", "ä", "a\0", &"x".repeat(201)] {
        assert!(
            matches!(path(name), Err(RegionError::Name { .. })),
            "{name:?}"
        );
    }
}

#[test]
fn fingerprints_see_where_a_text_ends() {
    assert_ne!(Fingerprint::of(["ab", "c"]), Fingerprint::of(["a", "bc"]));
    assert_ne!(Fingerprint::of(["ab"]), Fingerprint::of(["ab", ""]));
    assert_eq!(
        Fingerprint::of(["ab", "c"]),
        Fingerprint::of([b"ab".as_slice(), b"c"])
    );
}
