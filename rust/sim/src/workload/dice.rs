//! Random numbers that are the same everywhere: ChaCha8 and integer arithmetic.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A distribution of whole numbers by its values at 0, 25, 50, 75, 95 and 100 %, straight lines
/// between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread(pub [u64; 6]);

/// Where the values of a [`Spread`] stand, in millionths.
const MARKS: [u64; 6] = [0, 250_000, 500_000, 750_000, 950_000, 1_000_000];

impl Spread {
    /// The value at `millionths` of the distribution.
    fn at(&self, millionths: u64) -> u64 {
        let segment = (1..MARKS.len() - 1)
            .find(|&i| millionths < MARKS[i])
            .unwrap_or(MARKS.len() - 1);
        let (from, to) = (self.0[segment - 1], self.0[segment]);
        let (start, end) = (MARKS[segment - 1], MARKS[segment]);
        let past = (millionths - start).min(end - start);
        let step = |low: u64, high: u64| {
            let scaled = u128::from(high - low) * u128::from(past) / u128::from(end - start);
            u64::try_from(scaled).expect("at most the difference of two 64-bit values")
        };
        if to >= from {
            from + step(from, to)
        } else {
            from - step(to, from)
        }
    }
}

/// One stream of random numbers.
#[derive(Debug)]
pub(crate) struct Dice(ChaCha8Rng);

impl Dice {
    /// The stream with this number of this seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(stream);
        Self(generator)
    }

    /// A number from 0 to `bound - 1`; 0 for a bound of 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.0.next_u64()) * u128::from(bound);
        u64::try_from(product >> 64).expect("the upper half of a 128-bit product")
    }

    /// True in `permille` of 1000 cases.
    pub(crate) fn chance(&mut self, permille: u32) -> bool {
        self.below(1000) < u64::from(permille)
    }

    /// A number from a distribution.
    pub(crate) fn draw(&mut self, spread: &Spread) -> u64 {
        let millionths = self.below(1_000_000);
        spread.at(millionths)
    }

    /// An index below `count`, the n-th with weight 1/n.
    pub(crate) fn popular(&mut self, count: usize) -> usize {
        const UNIT: u64 = 1_000_000_000;
        let weight = |index: usize| UNIT / (index as u64 + 1);
        let mut left = self.below((0..count).map(weight).sum());
        for index in 0..count {
            match left.checked_sub(weight(index)) {
                Some(rest) => left = rest,
                None => return index,
            }
        }
        count.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_runs_through_its_marks_in_straight_lines() {
        let spread = Spread([10, 20, 40, 40, 30, 1030]);
        for (millionths, value) in [
            (0, 10),
            (125_000, 15),
            (250_000, 20),
            (375_000, 30),
            (600_000, 40),
            (850_000, 35),
            (975_000, 530),
            (1_000_000, 1030),
        ] {
            assert_eq!(spread.at(millionths), value, "at {millionths}");
        }
        assert_eq!(Spread([0, 0, 0, 0, 0, u64::MAX]).at(1_000_000), u64::MAX);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_every_value() {
        let mut dice = Dice::new(1, 2);
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[usize::try_from(dice.below(5)).expect("below 5")] += 1;
        }
        assert!(seen.iter().all(|&n| n > 150), "{seen:?}");
        assert_eq!(dice.below(0), 0);
    }

    #[test]
    fn popularity_falls_with_the_index() {
        let mut dice = Dice::new(1, 3);
        let mut seen = [0; 4];
        for _ in 0..25_000 {
            seen[dice.popular(4)] += 1;
        }
        // 25,000 draws with weights 12, 6, 4 and 3 of 25.
        for (seen, expected) in seen.into_iter().zip([12_000, 6_000, 4_000, 3_000]) {
            assert!(
                i32::abs(seen - expected) < 400,
                "{seen} instead of {expected}"
            );
        }
        assert_eq!(dice.popular(0), 0);
    }

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let first = |seed, stream| Dice::new(seed, stream).below(u64::MAX);
        assert_eq!(first(1, 1), first(1, 1));
        assert_ne!(first(1, 1), first(1, 2));
        assert_ne!(first(1, 1), first(2, 1));
    }
}
