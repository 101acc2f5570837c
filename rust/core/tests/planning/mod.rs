//! Layouts and transfers drawn at random, and where each of their bytes goes.

pub(crate) mod small;

use kvferry::transfer::{
    DeviceTensor, Direction, GroupTensor, HostSlots, KvLayout, LayoutError, Transfer,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

const HOST: u64 = 0x100_0000;

/// A layout, and a transfer over it.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    tensors: Vec<DeviceTensor>,
    groups: Vec<Vec<GroupTensor>>,
    blocks_per_chunk: u32,
    host: HostSlots,
    pub(crate) piece_bytes: Option<u64>,
    /// Whether the tensors lie block by block within each other.
    pub(crate) packed: bool,
    direction: Direction,
    block_ids: Vec<i64>,
    group_sizes: Vec<usize>,
    block_indices: Vec<u64>,
    slots: Vec<i64>,
}

impl Drawn {
    pub(crate) fn layout(&self) -> Result<KvLayout, LayoutError> {
        let mut host = self.host.clone();
        host.piece_bytes = self.piece_bytes;
        let (tensors, groups) = (self.tensors.clone(), self.groups.clone());
        KvLayout::new(tensors, groups, self.blocks_per_chunk, host)
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

    /// Its first group alone, in memory of one piece.
    pub(crate) fn of_one_group(mut self) -> Self {
        self.groups.truncate(1);
        self.host.parts.truncate(1);
        self.group_sizes.truncate(1);
        self.block_indices.truncate(1);
        let blocks = self.group_sizes[0];
        let k = u64::from(self.blocks_per_chunk);
        let skipped = self.block_indices[0] % k;
        let chunks = if blocks == 0 {
            0
        } else {
            (skipped + blocks as u64).div_ceil(k) as usize
        };
        self.block_ids.truncate(blocks);
        self.slots.truncate(chunks);
        self.piece_bytes = None;
        self
    }

    /// Every byte's address on both sides, in order.
    pub(crate) fn bytes(&self) -> Vec<(u64, u64)> {
        let k = u64::from(self.blocks_per_chunk);
        let mut pairs = Vec::new();
        let (mut blocks, mut slots) = (self.block_ids.iter(), self.slots.iter());
        for (g, group) in self.groups.iter().enumerate() {
            let mut slot = None;
            for i in 0..self.group_sizes[g] as u64 {
                // The block's place among the blocks of its request.
                let index = self.block_indices[g] + i;
                if slot.is_none() || index.is_multiple_of(k) {
                    slot = slots.next();
                }
                let (block, slot) = (blocks.next().expect("counted"), slot.expect("counted"));
                for (it, part) in group.iter().zip(&self.host.parts[g]) {
                    let tensor = self.tensors[it.tensor];
                    let device = tensor.address + *block as u64 * tensor.block_stride;
                    let page =
                        part.offset + *slot as u64 * part.slot_stride + index % k * it.page_bytes;
                    pairs.extend(
                        (0..it.page_bytes).map(|b| (device + b, self.host.address + page + b)),
                    );
                }
            }
        }
        pairs.sort_unstable();
        pairs
    }
}

/// Tensors of so many blocks: apart with gaps, side by side without any, or packed block by block.
fn tensors(blocks: u64) -> impl Strategy<Value = (Vec<DeviceTensor>, bool)> {
    let pages = vec(select(vec![1_u64, 3, 16, 24]), 1..=3);
    (pages, select(vec![0_u64, 0, 5]), any::<bool>()).prop_map(move |(pages, gap, packed)| {
        let stride: u64 = pages.iter().map(|page| page + gap).sum();
        let mut address = 0x1000;
        let mut made = Vec::new();
        for page_bytes in pages {
            made.push(DeviceTensor {
                address,
                block_stride: if packed { stride } else { page_bytes + gap },
                page_bytes,
                blocks,
            });
            address += if packed {
                page_bytes + gap
            } else {
                (page_bytes + gap) * blocks
            };
        }
        let packed = packed && made.len() > 1;
        (made, packed)
    })
}

/// Groups that use all tensors, some bytes of each; several of them overlay.
fn groups(tensors: &[DeviceTensor]) -> impl Strategy<Value = Vec<Vec<GroupTensor>>> + use<> {
    let uses: Vec<_> = tensors
        .iter()
        .enumerate()
        .map(|(tensor, it)| {
            let whole = it.page_bytes;
            (1..=2 * whole).prop_map(move |bytes| GroupTensor {
                tensor,
                page_bytes: bytes.min(whole),
            })
        })
        .collect();
    vec(uses, 1..=3)
}

type Ids = (Vec<i64>, Vec<usize>, Vec<u64>, Vec<i64>);

/// Blocks and slots of each group, all different, in runs and out of order.
fn ids(groups: usize, k: u64, blocks: u64, slots: u64) -> impl Strategy<Value = Ids> {
    let all = |n: u64| -> Vec<i64> { (0..n as i64).collect() };
    let some = subsequence(all(blocks), 0..=blocks as usize);
    let some = (some, any::<bool>()).prop_flat_map(|(ids, shuffle)| {
        if shuffle {
            Just(ids).prop_shuffle().boxed()
        } else {
            Just(ids).boxed()
        }
    });
    let indices = vec(0..3 * k, groups);
    let cuts = vec(0..=blocks as usize, groups);
    let slots = prop_oneof![
        Just(all(slots)).boxed(),
        Just(all(slots)).prop_shuffle().boxed()
    ];
    (some, indices, cuts, slots).prop_map(move |(mut left, indices, cuts, mut free)| {
        let mut drawn = Ids::default();
        for (index, cut) in indices.into_iter().zip(cuts) {
            let skipped = index % k;
            let room = (free.len() as u64 * k).saturating_sub(skipped) as usize;
            let size = cut.min(left.len()).min(room);
            let chunks = if size == 0 {
                0
            } else {
                (skipped + size as u64).div_ceil(k) as usize
            };
            drawn.0.extend(left.drain(..size));
            drawn.1.push(size);
            drawn.2.push(index);
            drawn.3.extend(free.drain(..chunks));
        }
        drawn
    })
}

/// Sound layouts and transfers.
pub(crate) fn pools() -> impl Strategy<Value = Drawn> {
    let numbers = (1..12_u64, 1..10_u64, select(vec![1_u32, 1, 2, 3, 4, 8]));
    numbers.prop_flat_map(|(blocks, slots, k)| {
        tensors(blocks).prop_flat_map(move |(tensors, packed)| {
            groups(&tensors).prop_flat_map(move |groups| {
                let (tensors, count) = (tensors.clone(), groups.len());
                (
                    ids(count, u64::from(k), blocks, slots),
                    any::<bool>(),
                    select(vec![1_u64, 8, 64]),
                    select(vec![None, None, Some(8_u64), Some(64)]),
                    select(vec![Direction::Store, Direction::Load]),
                )
                    .prop_map(
                        move |(ids, by_slot, alignment, piece_bytes, direction)| {
                            let made = if by_slot {
                                HostSlots::slot_major(&groups, k, HOST, slots, alignment)
                            } else {
                                HostSlots::tensor_major(&groups, k, HOST, slots, alignment)
                            };
                            let (block_ids, group_sizes, block_indices, slots) = ids;
                            Drawn {
                                tensors: tensors.clone(),
                                groups: groups.clone(),
                                blocks_per_chunk: k,
                                host: made.expect("small numbers"),
                                piece_bytes,
                                packed,
                                direction,
                                block_ids,
                                group_sizes,
                                block_indices,
                                slots,
                            }
                        },
                    )
            })
        })
    })
}

/// Numbers from both ends of their range, and near what is sound.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..20_u64,
        1 => Just(u64::MAX),
        1 => Just(1 << 63),
        1 => (u64::MAX - 20)..u64::MAX,
        1 => any::<u64>(),
    ]
}

fn id() -> impl Strategy<Value = i64> {
    prop_oneof![6 => 0..12_i64, 1 => Just(-1), 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => any::<i64>()]
}

/// Sound layouts and transfers with numbers changed to anything.
pub(crate) fn garbage() -> impl Strategy<Value = Drawn> {
    let changes = vec(
        (0..14_usize, any::<prop::sample::Index>(), number(), id()),
        1..4,
    );
    (pools(), changes).prop_map(|(mut drawn, changes)| {
        for (what, at, number, id) in changes {
            let tensor = at.index(drawn.tensors.len());
            let group = at.index(drawn.groups.len());
            let used = at.index(drawn.groups[group].len());
            match what {
                0 => drawn.tensors[tensor].address = number,
                1 => drawn.tensors[tensor].block_stride = number,
                2 => drawn.tensors[tensor].page_bytes = number,
                3 => drawn.tensors[tensor].blocks = number,
                4 => drawn.groups[group][used].page_bytes = number,
                5 => drawn.groups[group][used].tensor = usize::try_from(number).unwrap_or(9),
                6 => drawn.host.bytes = number,
                7 => drawn.host.slots = number,
                8 => drawn.host.parts[group][used].offset = number,
                9 => drawn.host.parts[group][used].slot_stride = number,
                10 => drawn.host.address = number,
                11 => drawn.block_indices[group] = number,
                12 if !drawn.block_ids.is_empty() => {
                    let at = at.index(drawn.block_ids.len());
                    drawn.block_ids[at] = id;
                }
                _ if !drawn.slots.is_empty() => {
                    let at = at.index(drawn.slots.len());
                    drawn.slots[at] = id;
                }
                _ => drawn.group_sizes[group] = usize::try_from(number).unwrap_or(usize::MAX),
            }
        }
        drawn
    })
}
