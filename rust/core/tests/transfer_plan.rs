//! Plans beside a model that works out every byte by itself.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the numbers of these tests are small"
)]

mod planning;

use kvferry::transfer::{
    CopyRange, DeviceTensor, Direction, GroupTensor, HostSlots, KvLayout, LayoutError, PlanError,
    Transfer,
};
use planning::small::{anything, sorted};
use planning::{garbage, pools};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const CASES: u32 = 3000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn a_plan_copies_exactly_the_bytes_of_its_pages(drawn in pools()) {
        let layout = drawn.layout().expect("the pools lie apart");
        let transfer = drawn.transfer();
        let plan = layout.plan(&transfer).expect("the transfer is sound");
        let expected = drawn.bytes();
        let sum: u64 = plan.ranges().iter().map(|range| range.bytes).sum();
        prop_assert_eq!(sum, plan.bytes());
        // A store may read a block for two groups: pairs, not a map from device bytes.
        let mut pairs: Vec<(u64, u64)> = plan
            .ranges()
            .iter()
            .flat_map(|range| (0..range.bytes).map(|i| (range.device + i, range.host + i)))
            .collect();
        pairs.sort_unstable();
        prop_assert_eq!(&pairs, &expected);
        // No destination twice.
        let mut destinations: Vec<u64> = pairs
            .iter()
            .map(|&(device, host)| match transfer.direction {
                Direction::Store => host,
                Direction::Load => device,
            })
            .collect();
        destinations.sort_unstable();
        prop_assert!(destinations.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn no_range_leaves_its_tensor_its_slots_or_its_piece(drawn in pools()) {
        let layout = drawn.layout().expect("the pools lie apart");
        let plan = layout.plan(&drawn.transfer()).expect("the transfer is sound");
        let (device, (host, host_bytes)) = layout.extents();
        for range in plan.ranges() {
            let within = |&(start, len): &(u64, u64)| {
                start <= range.device && range.device + range.bytes <= start + len
            };
            prop_assert!(device.iter().any(within), "{range:?}");
            prop_assert!(host <= range.host, "{range:?}");
            prop_assert!(range.host + range.bytes <= host + host_bytes, "{range:?}");
            if let Some(piece) = drawn.piece_bytes {
                let (first, last) = (range.host - host, range.host + range.bytes - 1 - host);
                prop_assert_eq!(first / piece, last / piece, "{:?}", range);
            }
        }
    }

    #[test]
    fn neighbours_of_one_tensor_are_one_range(drawn in pools()) {
        let drawn = drawn.of_one_group();
        let layout = drawn.layout().expect("the pools lie apart");
        let plan = layout.plan(&drawn.transfer()).expect("the transfer is sound");
        let (device, _) = layout.extents();
        let tensor_of = |address: u64| {
            device.iter().position(|&(start, len)| start <= address && address < start + len)
        };
        for pair in plan.ranges().windows(2) {
            let goes_on = pair[0].device + pair[0].bytes == pair[1].device
                && pair[0].host + pair[0].bytes == pair[1].host;
            // Packed tensors lie within each other's extents: which one a range belongs to is then
            // not told by its address.
            let apart = !drawn.packed && tensor_of(pair[0].device) == tensor_of(pair[1].device);
            prop_assert!(!(goes_on && apart), "{pair:?}");
        }
    }

    #[test]
    fn whatever_the_numbers_a_plan_that_is_made_stays_within_its_layout(given in garbage()) {
        let Ok(layout) = given.layout() else { return Ok(()) };
        let Ok(plan) = layout.plan(&given.transfer()) else { return Ok(()) };
        let (device, (host, host_bytes)) = layout.extents();
        for range in plan.ranges() {
            let device_end = range.device.checked_add(range.bytes).expect("does not wrap");
            let host_end = range.host.checked_add(range.bytes).expect("does not wrap");
            let within = |&(start, len): &(u64, u64)| start <= range.device && device_end <= start + len;
            prop_assert!(device.iter().any(within), "{range:?}");
            prop_assert!(host <= range.host && host_end <= host + host_bytes, "{range:?}");
        }
    }
}

/// Layouts and transfers of all kinds, most of them not sound: what is accepted keeps the promises,
/// a transfer is refused if and only if the model finds that fault, and what is planned are the
/// longest runs that the model finds.
#[test]
fn what_is_accepted_is_sound_and_what_is_refused_is_not() {
    let config = ProptestConfig {
        cases: 4 * CASES,
        source_file: Some(file!()),
        ..ProptestConfig::default()
    };
    // In the order: drawn, layouts accepted, transfers accepted with ranges, without.
    let met = std::cell::Cell::new([0_u32; 4]);
    let count = |what: usize| {
        let mut counts = met.get();
        counts[what] += 1;
        met.set(counts);
    };
    let run = TestRunner::new(config).run(&anything(), |drawn| {
        count(0);
        let Ok(layout) = drawn.layout() else {
            return Ok(());
        };
        count(1);
        drawn.check_promises(&layout);
        let faults = drawn.faults();
        match layout.plan(&drawn.transfer()) {
            Ok(plan) => {
                prop_assert_eq!(faults, []);
                let expected = drawn.ranges();
                prop_assert_eq!(sorted(plan.ranges().to_vec()), &*expected);
                let bytes: u64 = expected.iter().map(|range| range.bytes).sum();
                prop_assert_eq!(plan.bytes(), bytes);
                count(if expected.is_empty() { 3 } else { 2 });
            }
            Err(error) => prop_assert!(faults.contains(&error), "{error:?}, not {faults:?}"),
        }
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
    // The draw meets all outcomes, so none of the above is idle.
    let [drawn, layouts, planned, empty] = met.get();
    let refused = layouts - planned - empty;
    assert!(drawn > layouts && layouts > drawn / 4, "{:?}", met.get());
    assert!(
        planned > layouts / 4 && refused > layouts / 20,
        "{:?}",
        met.get()
    );
}

/// Two tensors of four blocks of 64 bytes, one group that uses both, two blocks a chunk, three slots.
fn small() -> (Vec<DeviceTensor>, Vec<Vec<GroupTensor>>, HostSlots) {
    let tensors = [0x1_0000, 0x2_0000].map(|address| DeviceTensor {
        address,
        block_stride: 64,
        page_bytes: 64,
        blocks: 4,
    });
    let groups = vec![
        [0, 1]
            .map(|tensor| GroupTensor {
                tensor,
                page_bytes: 64,
            })
            .to_vec(),
    ];
    let host = HostSlots::slot_major(&groups, 2, 0x10_0000, 3, 64).expect("small numbers");
    (tensors.to_vec(), groups, host)
}

fn layout() -> KvLayout {
    let (tensors, groups, host) = small();
    KvLayout::new(tensors, groups, 2, host).expect("lies apart")
}

fn transfer<'a>(
    direction: Direction,
    blocks: &'a [i64],
    sizes: &'a [usize],
    slots: &'a [i64],
) -> Transfer<'a> {
    Transfer {
        direction,
        block_ids: blocks,
        group_sizes: sizes,
        block_indices: &[0],
        slots,
    }
}

const STORE: Direction = Direction::Store;
const LOAD: Direction = Direction::Load;

#[test]
fn blocks_of_a_chunk_that_lie_together_are_one_range_for_each_tensor() {
    let plan = layout()
        .plan(&transfer(STORE, &[2, 3], &[2], &[1]))
        .expect("sound");
    let [first, second] =
        [(0x1_0080, 0x10_0100), (0x2_0080, 0x10_0180)].map(|(device, host)| CopyRange {
            device,
            host,
            bytes: 128,
        });
    assert_eq!(plan.ranges(), [first, second]);
    assert_eq!(plan.bytes(), 256);
}

#[test]
fn parts_of_a_slot_are_listed_together() {
    let plan = layout()
        .plan(&transfer(LOAD, &[3, 2, 1, 0], &[4], &[1, 2]))
        .expect("sound");
    let hosts = plan.ranges().iter().map(|range| range.host);
    assert!(hosts.is_sorted(), "{:?}", plan.ranges());
}

#[test]
fn groups_that_another_one_joins_are_one_class() {
    let (mut tensors, groups, _) = small();
    tensors.push(DeviceTensor {
        address: 0x3_0000,
        ..tensors[0]
    });
    let uses = [0, 1, 2].map(|tensor| GroupTensor {
        tensor,
        ..groups[0][0]
    });
    // The last one joins the first to the second, and so to the third.
    let groups = [&[0][..], &[1, 2], &[2], &[0, 1]];
    let groups = groups.map(|group| group.iter().map(|&tensor| uses[tensor]).collect());
    let host = HostSlots::slot_major(&groups, 2, 0x10_0000, 3, 64).expect("small numbers");
    let layout = KvLayout::new(tensors, groups.to_vec(), 2, host).expect("lies apart");
    assert_eq!(
        [0, 1, 2, 3].map(|group| layout.block_class(group)),
        [Some(0); 4]
    );
    assert_eq!(layout.block_classes(), [4]);
}

#[test]
fn slots_of_one_tensor_merge_where_those_of_another_have_gaps() {
    let (tensors, groups, _) = small();
    let mut host = HostSlots::tensor_major(&groups, 2, 0x10_0000, 3, 64).expect("small numbers");
    host.parts[0][0].slot_stride = 192;
    host.parts[0][1].offset = 576;
    host.bytes = 960;
    let layout = KvLayout::new(tensors, groups, 2, host).expect("lies apart");
    let plan = layout
        .plan(&transfer(LOAD, &[0, 1, 2, 3], &[4], &[1, 2]))
        .expect("sound");
    let mut ranges = plan
        .ranges()
        .iter()
        .map(|range| (range.device, range.bytes))
        .collect::<Vec<_>>();
    ranges.sort_unstable();
    assert_eq!(ranges, [(0x1_0000, 128), (0x1_0080, 128), (0x2_0000, 256)]);
}

#[test]
fn an_empty_transfer_is_an_empty_plan() {
    let plan = layout()
        .plan(&transfer(LOAD, &[], &[0], &[]))
        .expect("sound");
    assert_eq!((plan.ranges(), plan.bytes()), (&[][..], 0));
}

#[test]
fn a_transfer_that_cannot_be_planned_says_which_field_is_wrong() {
    let cases = [
        (STORE, vec![4], vec![1], vec![0], "block_ids[0]"),
        (STORE, vec![0, -1], vec![2], vec![0], "block_ids[1]"),
        (STORE, vec![i64::MAX], vec![1], vec![0], "block_ids[0]"),
        (STORE, vec![0], vec![1], vec![3], "slots[0]"),
        (STORE, vec![0], vec![1], vec![-1], "slots[0]"),
        (STORE, vec![0, 1], vec![1], vec![0], "group_sizes"),
        (STORE, vec![0, 1], vec![3], vec![0], "group_sizes"),
        (STORE, vec![0, 1], vec![usize::MAX], vec![0], "group_sizes"),
        (STORE, vec![0, 1], vec![1, 1], vec![0, 1], "group_sizes"),
        (STORE, vec![0, 1, 2], vec![3], vec![0], "slots"),
        (STORE, vec![0, 1], vec![2], vec![0, 1], "slots"),
        (STORE, vec![0, 1, 2], vec![3], vec![2, 2], "slots[1]"),
        (LOAD, vec![3, 1, 3], vec![3], vec![2, 1], "block_ids[2]"),
    ];
    for (direction, blocks, sizes, slots, field) in cases {
        let error = layout().plan(&transfer(direction, &blocks, &sizes, &slots));
        let message = error.expect_err(field).to_string();
        assert!(message.starts_with(field), "{message}");
    }
    let two_indices = Transfer {
        block_indices: &[0, 0],
        ..transfer(STORE, &[0], &[1], &[0])
    };
    let error = layout().plan(&two_indices).expect_err("one group");
    assert_eq!(
        error,
        PlanError::BlockIndices {
            given: 2,
            groups: 1
        }
    );
}

#[test]
fn a_source_may_be_there_twice() {
    layout()
        .plan(&transfer(LOAD, &[0, 1, 2], &[3], &[2, 2]))
        .expect("one slot, two chunks");
    layout()
        .plan(&transfer(STORE, &[3, 3], &[2], &[2]))
        .expect("one block, two places");
}

#[test]
fn a_block_that_two_groups_share_cannot_be_loaded_for_both() {
    let (tensors, mut groups, _) = small();
    groups.push(groups[0].clone());
    let host = HostSlots::slot_major(&groups, 2, 0x10_0000, 3, 64).expect("small numbers");
    let layout = KvLayout::new(tensors, groups, 2, host).expect("lies apart");
    let both = |direction, blocks| Transfer {
        direction,
        block_ids: blocks,
        group_sizes: &[1, 1],
        block_indices: &[0, 0],
        slots: &[0, 1],
    };
    let error = layout
        .plan(&both(LOAD, &[2, 2]))
        .expect_err("one block, twice written");
    assert_eq!(error, PlanError::BlockTwice { at: 1, block: 2 });
    layout.plan(&both(LOAD, &[2, 3])).expect("two blocks");
    layout.plan(&both(STORE, &[2, 2])).expect("read twice");
    assert_eq!(layout.block_class(0), layout.block_class(1));
}

#[test]
fn groups_with_tensors_of_their_own_have_blocks_of_their_own() {
    let (tensors, groups, _) = small();
    let groups: Vec<Vec<GroupTensor>> = groups[0].iter().map(|&it| vec![it]).collect();
    let host = HostSlots::tensor_major(&groups, 2, 0x10_0000, 3, 64).expect("small numbers");
    let layout = KvLayout::new(tensors, groups, 2, host).expect("lies apart");
    let both = Transfer {
        direction: LOAD,
        block_ids: &[2, 2],
        group_sizes: &[1, 1],
        block_indices: &[0, 0],
        slots: &[0, 1],
    };
    layout.plan(&both).expect("different memory");
    assert_ne!(layout.block_class(0), layout.block_class(1));
    assert_eq!(layout.block_classes(), [4, 4]);
}

/// Changes one thing of a sound layout, and says what is refused.
#[test]
fn a_layout_that_cannot_be_used_says_what_is_wrong() {
    type Change = fn(&mut Vec<DeviceTensor>, &mut Vec<Vec<GroupTensor>>, &mut u32, &mut HostSlots);
    let cases: Vec<(&str, Change)> = vec![
        ("blocks_per_chunk", |_, _, k, _| *k = 0),
        ("no KV-cache group", |_, g, _, h| {
            g.clear();
            h.parts.clear();
        }),
        ("group 0 uses no tensor", |_, g, _, h| {
            g[0].clear();
            h.parts[0].clear();
        }),
        ("tensor 1 has 0 blocks", |t, _, _, _| t[1].blocks = 0),
        ("pages of 0 bytes", |t, _, _, _| t[0].page_bytes = 0),
        ("blocks of 64 bytes lie 63 bytes apart", |t, _, _, _| {
            t[0].block_stride = 63;
        }),
        ("tensor 1 reaches beyond", |t, _, _, _| {
            t[1].address = u64::MAX - 100;
        }),
        ("tensor 0 reaches beyond", |t, _, _, _| {
            t[0].blocks = u64::MAX;
        }),
        ("tensor 0 reaches beyond", |t, _, _, _| {
            t[0].block_stride = u64::MAX / 2;
        }),
        ("tensors 0 and 1 overlap", |t, _, _, _| {
            t[1].address = t[0].address + 64;
        }),
        ("tensors 0 and 1 overlap", |t, _, _, _| {
            t[1].address = t[0].address;
            t[1].block_stride = 128;
        }),
        ("group 0 uses tensor 2 of 2", |_, g, _, _| {
            g[0][1].tensor = 2;
        }),
        ("group 0 uses 65 bytes of the 64", |_, g, _, _| {
            g[0][1].page_bytes = 65;
        }),
        ("group 0 uses 0 bytes", |_, g, _, _| g[0][0].page_bytes = 0),
        ("group 0 uses bytes of its blocks twice", |_, g, _, _| {
            g[0][1].tensor = 0;
        }),
        ("there are no slots", |_, _, _, h| h.slots = 0),
        ("beyond the last address", |_, _, _, h| {
            h.address = u64::MAX - 10;
        }),
        ("1 parts for the 2 tensors of group 0", |_, _, _, h| {
            h.parts[0].truncate(1);
        }),
        ("beyond the 767 bytes", |_, _, _, h| h.bytes = 767),
        ("beyond the 768 bytes", |_, _, _, h| h.slots = 4),
        ("beyond the 768 bytes", |_, _, _, h| {
            h.parts[0][0].offset = u64::MAX;
        }),
        ("slots of 128 bytes lie 127 bytes apart", |_, _, _, h| {
            h.parts[0][0].slot_stride = 127;
        }),
        ("parts (0, 0) and (0, 1)", |_, _, _, h| {
            h.parts[0][1].offset = 64;
        }),
        ("parts (0, 0) and (0, 1)", |_, _, _, h| {
            h.parts[0][1].slot_stride = 128;
        }),
        ("piece_bytes: 48", |_, _, _, h| h.piece_bytes = Some(48)),
        ("tensor 1 overlaps the host memory", |t, _, _, h| {
            t[1].address = h.address + 700;
        }),
    ];
    for (message, change) in cases {
        let (mut tensors, mut groups, mut host) = small();
        let mut k = 2;
        change(&mut tensors, &mut groups, &mut k, &mut host);
        let error = KvLayout::new(tensors, groups, k, host)
            .expect_err(message)
            .to_string();
        assert!(
            error.contains(message),
            "{error:?} does not say {message:?}"
        );
    }
}

#[test]
fn sizes_that_overflow_are_refused_before_a_layout_is_made() {
    let groups = vec![vec![GroupTensor {
        tensor: 0,
        page_bytes: u64::MAX / 2,
    }]];
    for made in [HostSlots::slot_major, HostSlots::tensor_major] {
        assert!(made(&groups, 3, 0, 1, 1).is_err());
        assert!(made(&groups, 1, 0, 3, 1).is_err());
    }
    assert!(HostSlots::slot_major(&groups, 2, 0, 1, 1 << 63).is_err());
    let error = HostSlots::slot_major(&groups, 3, 0, 1, 1).expect_err("too large");
    assert_eq!(error, LayoutError::GroupTooLarge { group: 0 });
}

#[test]
fn two_layouts_are_told_apart_and_a_clone_is_the_same() {
    let one = layout();
    assert_ne!(one.id(), layout().id());
    assert_eq!(one.id(), one.clone().id());
    let plan = one.plan(&transfer(STORE, &[0], &[1], &[0])).expect("sound");
    assert_eq!(plan.layout(), one.id());
}

#[test]
fn a_chunk_has_the_bytes_of_all_its_pages() {
    assert_eq!(layout().bytes_per_chunk(0), Some(256));
    assert_eq!(layout().bytes_per_chunk(1), None);
}
