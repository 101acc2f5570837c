//! Memories of a few bytes, drawn with little regard for the rules of layouts and transfers, and
//! what the rules say of them when they are gone through byte by byte.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use kvferry::transfer::{
    CopyRange, DeviceTensor, Direction, GroupTensor, HostPart, HostSlots, KvLayout, LayoutError,
    PlanError, Transfer,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};

const DEVICE: u64 = 0x100;
/// No multiple of a piece, since pieces are counted from the beginning of the memory.
const HOST: u64 = 0x1003;

/// A layout that may break the rules, and a transfer that may.
#[derive(Debug, Clone)]
pub(crate) struct Small {
    tensors: Vec<DeviceTensor>,
    groups: Vec<Vec<GroupTensor>>,
    blocks_per_chunk: u32,
    host: HostSlots,
    direction: Direction,
    block_ids: Vec<i64>,
    group_sizes: Vec<usize>,
    block_indices: Vec<u64>,
    slots: Vec<i64>,
}

impl Small {
    pub(crate) fn layout(&self) -> Result<KvLayout, LayoutError> {
        let (tensors, groups) = (self.tensors.clone(), self.groups.clone());
        KvLayout::new(tensors, groups, self.blocks_per_chunk, self.host.clone())
    }

    pub(crate) fn transfer(&self) -> Transfer<'_> {
        Transfer {
            direction: self.direction,
            block_ids: &self.block_ids,
            group_sizes: &self.group_sizes,
            block_indices: &self.block_indices,
            slots: &self.slots,
        }
    }

    /// The bytes of a block that one of a group's tensors holds.
    fn page(&self, it: &GroupTensor, block: u64) -> Range<u64> {
        let tensor = self.tensors[it.tensor];
        let start = tensor.address + block * tensor.block_stride;
        start..start + it.page_bytes
    }

    /// What a layout promises, of one that was accepted: see the module `layout`.
    pub(crate) fn check_promises(&self, layout: &KvLayout) {
        let mut block_of = BTreeMap::new();
        let mut device = BTreeSet::new();
        for tensor in &self.tensors {
            for block in 0..tensor.blocks {
                let start = tensor.address + block * tensor.block_stride;
                for byte in start..start + tensor.page_bytes {
                    let before = *block_of.entry(byte).or_insert(block);
                    assert_eq!(before, block, "byte {byte:#x} is of two blocks");
                    device.insert(byte);
                }
            }
        }
        let whole = self.host.address..self.host.address + self.host.bytes;
        let mut slot_of = BTreeMap::new();
        for (group, parts) in self.groups.iter().zip(&self.host.parts) {
            let mut of_group = BTreeSet::new();
            for (it, part) in group.iter().zip(parts) {
                for slot in 0..self.host.slots {
                    let start = whole.start + part.offset + slot * part.slot_stride;
                    for byte in start..start + it.page_bytes * u64::from(self.blocks_per_chunk) {
                        let before = *slot_of.entry(byte).or_insert(slot);
                        assert_eq!(before, slot, "byte {byte:#x} is of two slots");
                        assert!(of_group.insert(byte), "byte {byte:#x} is of two parts");
                        assert!(whole.contains(&byte), "byte {byte:#x} is outside");
                    }
                }
            }
        }
        assert!(!device.iter().any(|byte| whole.contains(byte)));
        self.check_classes(layout);
    }

    fn check_classes(&self, layout: &KvLayout) {
        let bytes_of = |group: &Vec<GroupTensor>| {
            let mut bytes = BTreeSet::new();
            for it in group {
                for block in 0..self.tensors[it.tensor].blocks {
                    for byte in self.page(it, block) {
                        assert!(bytes.insert(byte), "a group has byte {byte:#x} twice");
                    }
                }
            }
            bytes
        };
        let bytes: Vec<_> = self.groups.iter().map(bytes_of).collect();
        let classes = self.classes();
        for one in 0..bytes.len() {
            for other in 0..one {
                if !bytes[one].is_disjoint(&bytes[other]) {
                    assert_eq!(classes[one], classes[other]);
                }
                let same = layout.block_class(one) == layout.block_class(other);
                assert_eq!(same, classes[one] == classes[other], "{one} and {other}");
            }
        }
        for (group, it) in self.groups.iter().enumerate() {
            let class = layout.block_class(group).expect("there is such a group");
            let blocks = it.iter().map(|it| self.tensors[it.tensor].blocks).max();
            assert!(Some(layout.block_classes()[class]) >= blocks);
        }
    }

    /// The groups that share bytes of blocks, with those in between, have one number.
    fn classes(&self) -> Vec<usize> {
        let mut class: Vec<usize> = (0..self.groups.len()).collect();
        let shares = |a: &GroupTensor, b: &GroupTensor| {
            let blocks = |it: &GroupTensor| 0..self.tensors[it.tensor].blocks;
            blocks(a).any(|i| {
                let a = self.page(a, i);
                blocks(b).any(|j| {
                    let b = self.page(b, j);
                    a.clone().any(|byte| b.contains(&byte))
                })
            })
        };
        // As often as there are groups: a number wanders along a chain one group at a time.
        for _ in 0..self.groups.len() {
            for one in 0..class.len() {
                for other in 0..class.len() {
                    let mut pairs = self.groups[one]
                        .iter()
                        .flat_map(|a| self.groups[other].iter().map(move |b| (a, b)));
                    if pairs.any(|(a, b)| shares(a, b)) {
                        let least = class[one].min(class[other]);
                        (class[one], class[other]) = (least, least);
                    }
                }
            }
        }
        class
    }

    /// For each block its group, and its place within its chunk; and how many chunks there are.
    fn walk(&self) -> (Vec<(usize, u64, usize)>, usize) {
        let k = u64::from(self.blocks_per_chunk);
        let (mut places, mut chunks) = (Vec::new(), 0);
        for (group, (&size, &index)) in self.group_sizes.iter().zip(&self.block_indices).enumerate()
        {
            let mut place = index % k;
            for i in 0..size {
                if i == 0 || place == k {
                    chunks += 1;
                    place %= k;
                }
                places.push((group, place, chunks - 1));
                place += 1;
            }
        }
        (places, chunks)
    }

    /// All that is wrong with the transfer. As long as numbers do not match, ids mean nothing.
    pub(crate) fn faults(&self) -> Vec<PlanError> {
        let (groups, blocks) = (self.groups.len(), self.block_ids.len());
        let mut faults = Vec::new();
        if self.group_sizes.len() != groups {
            let given = self.group_sizes.len();
            faults.push(PlanError::GroupSizes { given, groups });
        }
        if self.block_indices.len() != groups {
            let given = self.block_indices.len();
            faults.push(PlanError::BlockIndices { given, groups });
        }
        let sizes: usize = self.group_sizes.iter().sum();
        if sizes != blocks {
            let sizes = Some(sizes);
            faults.push(PlanError::BlockCount { sizes, blocks });
        }
        if !faults.is_empty() {
            return faults;
        }
        let (places, chunks) = self.walk();
        let given = self.slots.len();
        if given != chunks {
            return vec![PlanError::SlotCount { given, chunks }];
        }
        let slots = self.host.slots;
        for (at, &slot) in self.slots.iter().enumerate() {
            if slot < 0 || slot >= slots as i64 {
                faults.push(PlanError::Slot { at, slot, slots });
            }
            if self.direction == Direction::Store && self.slots[..at].contains(&slot) {
                faults.push(PlanError::SlotTwice { at, slot });
            }
        }
        let classes = self.classes();
        for (at, (&block, &(group, ..))) in self.block_ids.iter().zip(&places).enumerate() {
            let of_group = self.groups[group].iter();
            let blocks = of_group.map(|it| self.tensors[it.tensor].blocks).min();
            let blocks = blocks.expect("each group has tensors");
            if block < 0 || block >= blocks as i64 {
                faults.push(PlanError::Block {
                    at,
                    block,
                    group,
                    blocks,
                });
            }
            let same = |before: usize| {
                self.block_ids[before] == block && classes[places[before].0] == classes[group]
            };
            if self.direction == Direction::Load && (0..at).any(same) {
                faults.push(PlanError::BlockTwice { at, block });
            }
        }
        faults
    }

    /// The longest runs of bytes that go on in both memories, within one tensor of one group and
    /// one piece, in order.
    pub(crate) fn ranges(&self) -> Vec<CopyRange> {
        let (places, _) = self.walk();
        let mut ranges = Vec::new();
        for (group, (uses, parts)) in self.groups.iter().zip(&self.host.parts).enumerate() {
            for (it, part) in uses.iter().zip(parts) {
                let mut run: Option<CopyRange> = None;
                for (&block, &(of, place, chunk)) in self.block_ids.iter().zip(&places) {
                    if of != group {
                        continue;
                    }
                    let slot = self.slots[chunk].unsigned_abs() * part.slot_stride;
                    let offset = part.offset + slot + place * it.page_bytes;
                    for (byte, device) in self.page(it, block.unsigned_abs()).enumerate() {
                        let offset = offset + byte as u64;
                        let host = self.host.address + offset;
                        let cut = |size| offset.is_multiple_of(size);
                        match &mut run {
                            Some(run)
                                if run.device + run.bytes == device
                                    && run.host + run.bytes == host
                                    && !self.host.piece_bytes.is_some_and(cut) =>
                            {
                                run.bytes += 1;
                            }
                            _ => ranges.extend(run.replace(CopyRange {
                                device,
                                host,
                                bytes: 1,
                            })),
                        }
                    }
                }
                ranges.extend(run);
            }
        }
        sorted(ranges)
    }
}

pub(crate) fn sorted(mut ranges: Vec<CopyRange>) -> Vec<CopyRange> {
    ranges.sort_unstable_by_key(|range| (range.host, range.device, range.bytes));
    ranges
}

/// Where a tensor lies beside the one before it.
#[derive(Debug, Clone, Copy)]
enum Beside {
    Anywhere,
    /// After its end.
    After,
    /// Block by block within or over it.
    InStep,
}

fn tensors() -> impl Strategy<Value = Vec<DeviceTensor>> {
    let beside = prop_oneof![
        1 => Just(Beside::Anywhere),
        4 => Just(Beside::After),
        4 => Just(Beside::InStep),
    ];
    let tensor = (beside, 0..64_u64, 0..4_u64, 1..=8_u64, 1..=5_u64);
    vec(tensor, 1..=3).prop_map(|drawn| {
        let mut made: Vec<DeviceTensor> = Vec::new();
        for (beside, offset, gap, page_bytes, blocks) in drawn {
            let alone = DeviceTensor {
                address: DEVICE + offset,
                block_stride: page_bytes + gap,
                page_bytes,
                blocks,
            };
            made.push(match (beside, made.last()) {
                (Beside::Anywhere, _) | (_, None) => alone,
                (Beside::After, Some(last)) => DeviceTensor {
                    address: last.address + last.blocks * last.block_stride + offset / 32,
                    ..alone
                },
                (Beside::InStep, Some(last)) => DeviceTensor {
                    // Half of them at its very beginning, as groups that share a tensor are.
                    address: last.address + offset % 16 / 8 * (offset % 8),
                    block_stride: last.block_stride,
                    page_bytes: page_bytes.min(last.block_stride),
                    blocks,
                },
            });
        }
        made
    })
}

/// Groups that use some of the tensors each, in any order.
fn groups(tensors: &[DeviceTensor]) -> impl Strategy<Value = Vec<Vec<GroupTensor>>> + use<> {
    let tensors = tensors.to_vec();
    let all: Vec<usize> = (0..tensors.len()).collect();
    let some = subsequence(all.clone(), 1..=all.len()).prop_shuffle();
    let group = (some, vec(1..=16_u64, 3)).prop_map(move |(some, pages)| {
        let uses = some.into_iter().zip(pages);
        let uses = uses.map(|(tensor, page)| GroupTensor {
            tensor,
            page_bytes: page.min(tensors[tensor].page_bytes),
        });
        uses.collect()
    });
    vec(group, 1..=4)
}

/// Slots laid out in one of the usual ways, or each part in an array of its own with gaps or
/// without; half of the time with one number changed.
fn host(groups: &[Vec<GroupTensor>], k: u32) -> impl Strategy<Value = HostSlots> + use<> {
    let groups = groups.to_vec();
    let way = (0..3_usize, 1..=4_u64, vec(0..2_u64, 12));
    let change = (0..12_usize, any::<Index>(), any::<Index>(), 0..12_u64);
    let piece = prop_oneof![2 => Just(None), 1 => (0..5_u32).prop_map(|shift| Some(1 << shift))];
    (way, 1..=4_u64, piece, change).prop_map(
        move |((way, alignment, gaps), slots, piece_bytes, (what, at, used, number))| {
            let made = match way {
                0 => HostSlots::slot_major(&groups, k, HOST, slots, alignment),
                1 => HostSlots::tensor_major(&groups, k, HOST, slots, alignment),
                _ => Ok(arrays(&groups, k, slots, &gaps)),
            };
            let mut made = made.expect("small numbers");
            made.piece_bytes = piece_bytes;
            let parts = &mut made.parts[at.index(groups.len())];
            let used = used.index(parts.len());
            let part = &mut parts[used];
            match what {
                0 => part.offset += number,
                1 => part.offset = number,
                2 => part.slot_stride = number * 4,
                3 => part.slot_stride += number,
                4 => made.bytes -= made.bytes.min(number),
                5 => made.address = DEVICE + 8 * number,
                _ => {}
            }
            // Room for what has been moved, where that is not what is to be noticed.
            made.bytes += if what < 4 { 24 * number } else { 0 };
            made
        },
    )
}

/// An array of slots for each tensor of each group, with so many bytes between its slots.
fn arrays(groups: &[Vec<GroupTensor>], k: u32, slots: u64, gaps: &[u64]) -> HostSlots {
    let mut gaps = gaps.iter();
    let mut bytes = 0;
    let mut part = |it: &GroupTensor| {
        let gap = gaps.next().expect("four groups of three tensors at most");
        let slot_stride = it.page_bytes * u64::from(k) + gap;
        let offset = bytes;
        bytes += slots * slot_stride;
        HostPart {
            offset,
            slot_stride,
        }
    };
    let parts = groups
        .iter()
        .map(|group| group.iter().map(&mut part).collect())
        .collect();
    HostSlots {
        address: HOST,
        bytes,
        slots,
        parts,
        piece_bytes: None,
    }
}

/// Blocks, sizes, indices and slots, half of the time with one of them changed.
fn ids(
    tensors: &[DeviceTensor],
    groups: usize,
    k: u32,
    slots: u64,
) -> impl Strategy<Value = (Vec<i64>, Vec<usize>, Vec<u64>, Vec<i64>)> + use<> {
    let blocks = tensors.iter().map(|it| it.blocks).min().unwrap_or(0);
    let all: Vec<i64> = (0..blocks as i64).collect();
    let some = subsequence(all.clone(), 0..=all.len());
    let ids = prop_oneof![some.clone(), some.prop_shuffle()];
    let index = prop_oneof![4 => 0..3 * u64::from(k), 1 => u64::MAX - 3..=u64::MAX];
    let places = Just((0..slots as i64).collect::<Vec<_>>());
    let places = prop_oneof![places.clone().boxed(), places.prop_shuffle().boxed()];
    let change = (0..14_usize, any::<Index>(), -2..8_i64);
    (vec((ids, index), groups), places, change).prop_map(move |(drawn, places, change)| {
        let (mut block_ids, mut sizes, mut indices) = (Vec::new(), Vec::new(), Vec::new());
        let mut chunks = 0;
        for (mut ids, index) in drawn {
            // As many as there are slots for, mostly.
            let skipped = (index % u64::from(k)) as usize;
            let room = (places.len().saturating_sub(chunks) * k as usize).saturating_sub(skipped);
            ids.truncate(room);
            chunks += if ids.is_empty() {
                0
            } else {
                (skipped + ids.len()).div_ceil(k as usize)
            };
            sizes.push(ids.len());
            indices.push(index);
            block_ids.extend(ids);
        }
        let mut slots: Vec<i64> = places.iter().copied().cycle().take(chunks).collect();
        let (what, at, number) = change;
        match what {
            0 | 1 if !block_ids.is_empty() => {
                let at = at.index(block_ids.len());
                block_ids[at] = number;
            }
            2 | 3 if !slots.is_empty() => {
                let at = at.index(slots.len());
                slots[at] = number;
            }
            4 => sizes[at.index(groups)] = number.unsigned_abs() as usize,
            5 => indices[at.index(groups)] = number.unsigned_abs(),
            6 if number == 0 => slots.push(0),
            6 if number == 1 => drop(slots.pop()),
            6 if number == 2 => drop(sizes.pop()),
            6 if number == 3 => indices.push(0),
            6 if number == 4 => block_ids.push(0),
            _ => {}
        }
        (block_ids, sizes, indices, slots)
    })
}

pub(crate) fn anything() -> impl Strategy<Value = Small> {
    (tensors(), 1..=3_u32).prop_flat_map(|(tensors, k)| {
        groups(&tensors).prop_flat_map(move |groups| {
            let tensors = tensors.clone();
            host(&groups, k).prop_flat_map(move |host| {
                let (tensors, groups) = (tensors.clone(), groups.clone());
                let direction = prop_oneof![Just(Direction::Store), Just(Direction::Load)];
                (ids(&tensors, groups.len(), k, host.slots), direction).prop_map(
                    move |((block_ids, group_sizes, block_indices, slots), direction)| Small {
                        tensors: tensors.clone(),
                        groups: groups.clone(),
                        blocks_per_chunk: k,
                        host: host.clone(),
                        direction,
                        block_ids,
                        group_sizes,
                        block_indices,
                        slots,
                    },
                )
            })
        })
    })
}
