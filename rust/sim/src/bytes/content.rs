//! What a chunk holds: a function of its key, so that any copy of it can be compared in full.
//!
//! Every word depends on the chunk, the tensor, the block within the chunk and its own place: a page
//! of another chunk, tensor or block, a shifted page and a stale one all differ.

/// Weyl steps: odd, so that a step visits every value of a word before it repeats.
const WORD_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const PAGE_STEP: u64 = 0xd1b5_4a32_d192_ed03;
const CHUNK_STEP: u64 = 0xa076_1d64_78bd_642f;

const WORD_BYTES: usize = size_of::<u64>();

/// One page of a chunk: which chunk, tensor and block within the chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) chunk: u32,
    pub(super) tensor: usize,
    pub(super) block: usize,
}

/// Where a page differs from what it has to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) offset: usize,
    pub(super) expected: u8,
    pub(super) found: u8,
}

impl Page {
    fn first_word(self) -> u64 {
        let page = ((self.tensor as u64) << 32) | self.block as u64;
        let seed = u64::from(self.chunk)
            .wrapping_add(1)
            .wrapping_mul(CHUNK_STEP)
            .wrapping_add(page.wrapping_add(1).wrapping_mul(PAGE_STEP));
        // Stafford's finaliser "Mix13": without it, two pages would be shifts of one sequence.
        let seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        seed ^ (seed >> 31)
    }

    /// Writes the page's content. Its length is a multiple of 8 bytes.
    pub(super) fn fill(self, bytes: &mut [u8]) {
        let mut word = self.first_word();
        for place in bytes.chunks_exact_mut(WORD_BYTES) {
            place.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(WORD_STEP);
        }
    }

    /// Compares every byte; the first one that differs.
    pub(super) fn compare(self, bytes: &[u8]) -> Result<(), Difference> {
        let mut word = self.first_word();
        let mut differs = 0;
        for place in bytes.chunks_exact(WORD_BYTES) {
            let found = u64::from_le_bytes(place.try_into().expect("a word is 8 bytes"));
            // Without a branch a word: the usual case is that all are equal.
            differs |= found ^ word;
            word = word.wrapping_add(WORD_STEP);
        }
        if differs == 0 {
            return Ok(());
        }
        Err(self.first_difference(bytes))
    }

    #[cold]
    fn first_difference(self, bytes: &[u8]) -> Difference {
        let mut expected = vec![0; bytes.len()];
        self.fill(&mut expected);
        let offset = (0..bytes.len())
            .find(|&offset| bytes[offset] != expected[offset])
            .expect("the words differ somewhere");
        Difference {
            offset,
            expected: expected[offset],
            found: bytes[offset],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Page = Page {
        chunk: 7,
        tensor: 1,
        block: 0,
    };

    #[test]
    fn a_filled_page_compares_equal_and_any_flipped_byte_is_found() {
        let mut bytes = vec![0; 256];
        PAGE.fill(&mut bytes);
        assert_eq!(PAGE.compare(&bytes), Ok(()));
        for offset in 0..bytes.len() {
            let expected = bytes[offset];
            bytes[offset] ^= 0x10;
            let found = bytes[offset];
            let difference = Difference {
                offset,
                expected,
                found,
            };
            assert_eq!(PAGE.compare(&bytes), Err(difference));
            bytes[offset] = expected;
        }
    }

    #[test]
    fn no_two_pages_share_a_word_at_the_same_place() {
        let mut words = std::collections::HashSet::new();
        for chunk in 0..50 {
            for tensor in 0..4 {
                for block in 0..4 {
                    let page = Page {
                        chunk,
                        tensor,
                        block,
                    };
                    assert!(words.insert(page.first_word()), "{page:?}");
                }
            }
        }
    }
}
