//! Builds the tree of chains of a trace: what a chunk is called, and which chunk precedes it.
//!
//! 1. A chunk is identified by its whole prefix, as engines' chained block hashes are: the same
//!    label under another parent is another chunk. Traces whose ids already stand for prefixes come
//!    out unchanged.
//! 2. A parent has a lower id than its children, so one pass in id order sees parents first.
//!
//! A step along a known chain costs one comparison, a step at a branching point one hash lookup. 12
//! bytes a chunk.

use std::collections::HashMap;

use crate::error::Fault;
use crate::read::MAX_BLOCKS;
use crate::trace::{ChunkId, NONE};

/// A place in the tree: the chain's last chunk and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) tail: ChunkId,
    pub(crate) len: u32,
}

impl Chain {
    /// The chain of no chunk.
    pub(crate) const EMPTY: Self = Self { tail: NONE, len: 0 };
}

/// The tree while it grows.
#[derive(Debug, Default)]
pub(crate) struct ChainTree {
    parents: Vec<ChunkId>,
    labels: Vec<u64>,
    /// Children that do not directly follow their parent in id order, by parent and label.
    branches: HashMap<(ChunkId, u64), ChunkId>,
}

impl ChainTree {
    /// The child of `chain` with this label, made if there is none.
    pub(crate) fn step(&mut self, chain: Chain, label: u64) -> Result<Chain, Fault> {
        let len = chain.len + 1;
        let follower = chain.tail.index().map_or(0, |tail| tail + 1);
        if self.parents.get(follower) == Some(&chain.tail) && self.labels[follower] == label {
            let tail = ChunkId::from_index(follower);
            return Ok(Chain { tail, len });
        }
        if let Some(&tail) = self.branches.get(&(chain.tail, label)) {
            return Ok(Chain { tail, len });
        }
        let fresh = self.parents.len();
        if fresh >= MAX_BLOCKS {
            return Err(Fault::TooManyBlocks);
        }
        let tail = ChunkId::from_index(fresh);
        self.parents.push(chain.tail);
        self.labels.push(label);
        if fresh != follower {
            self.branches.insert((chain.tail, label), tail);
        }
        Ok(Chain { tail, len })
    }

    /// The first `len` chunks of `chain`. Walks from the tail: O(chunks left out).
    pub(crate) fn prefix(&self, chain: Chain, len: u32) -> Chain {
        let mut tail = chain.tail;
        for _ in len..chain.len {
            match tail.index() {
                Some(index) => tail = self.parents[index],
                None => return Chain::EMPTY,
            }
        }
        Chain {
            tail,
            len: len.min(chain.len),
        }
    }

    /// The parent of every chunk, by id.
    pub(crate) fn into_parents(self) -> Vec<ChunkId> {
        self.parents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain_of(tree: &mut ChainTree, labels: &[u64]) -> Chain {
        labels.iter().fold(Chain::EMPTY, |chain, &label| {
            tree.step(chain, label).expect("the tree is small")
        })
    }

    #[test]
    fn equal_prefixes_share_their_chunks_and_a_fork_does_not() {
        let mut tree = ChainTree::default();
        let first = chain_of(&mut tree, &[7, 8, 9]);
        let fork = chain_of(&mut tree, &[7, 8, 10, 11]);
        assert_eq!(chain_of(&mut tree, &[7, 8, 9]), first);
        assert_eq!(chain_of(&mut tree, &[7, 8, 10, 11]), fork);
        assert_eq!(tree.prefix(fork, 2), tree.prefix(first, 2));
        assert_eq!(tree.into_parents().len(), 5);
    }

    #[test]
    fn a_label_under_another_parent_is_another_chunk() {
        let mut tree = ChainTree::default();
        let after_one = chain_of(&mut tree, &[1, 5]);
        let after_two = chain_of(&mut tree, &[2, 5]);
        assert_ne!(after_one.tail, after_two.tail);
        let twice = chain_of(&mut tree, &[1, 1]);
        assert_ne!(tree.prefix(twice, 1).tail, twice.tail);
    }

    #[test]
    fn the_empty_prefix_of_any_chain_is_the_empty_chain() {
        let mut tree = ChainTree::default();
        let chain = chain_of(&mut tree, &[1, 2, 3]);
        assert_eq!(tree.prefix(chain, 0), Chain::EMPTY);
        assert_eq!(tree.prefix(chain, 3), chain);
        assert_eq!(tree.prefix(Chain::EMPTY, 0), Chain::EMPTY);
    }
}
