//! Capacities as people give them: a number of chunks, or a share of the trace's unique chunks.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Most digits after the point of a percentage: more would not fit the arithmetic.
const MOST_DECIMALS: usize = 9;

/// A capacity as it was given. Shares are decimal fractions, so that no rounding moves a floor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    given: String,
    size: Size,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Chunks(u64),
    /// `parts / whole` of the unique chunks.
    Share {
        parts: u64,
        whole: u64,
    },
}

/// Why a capacity makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// Neither a percentage nor a number of chunks.
    #[error("capacity {given:?}: expected a percentage such as 2.5% or a number of chunks")]
    Unreadable {
        /// The text.
        given: String,
    },
    /// A percentage that is not above 0 and at most 100.
    #[error("capacity {given:?}: a percentage is above 0 and at most 100")]
    ShareOutOfRange {
        /// The text.
        given: String,
    },
    /// No chunk at all.
    #[error("capacity {given:?}: at least one chunk is needed")]
    Zero {
        /// The text.
        given: String,
    },
    /// A share that is less than one chunk.
    #[error("capacity {given:?} of {unique_chunks} unique chunks is less than one chunk")]
    LessThanOne {
        /// The text.
        given: String,
        /// Unique chunks of the trace.
        unique_chunks: u64,
    },
}

impl Capacity {
    /// The text that it was given as.
    #[must_use]
    pub fn given(&self) -> &str {
        &self.given
    }

    /// Its size in chunks for a trace with so many unique chunks. Shares are floored.
    ///
    /// # Errors
    ///
    /// If that is less than one chunk.
    pub fn chunks_of(&self, unique_chunks: u64) -> Result<u64, CapacityError> {
        let chunks = match self.size {
            Size::Chunks(chunks) => chunks,
            Size::Share { parts, whole } => {
                let share = u128::from(unique_chunks) * u128::from(parts) / u128::from(whole);
                u64::try_from(share).expect("a share is at most the whole")
            }
        };
        if chunks == 0 {
            return Err(CapacityError::LessThanOne {
                given: self.given.clone(),
                unique_chunks,
            });
        }
        Ok(chunks)
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.given)
    }
}

impl FromStr for Capacity {
    type Err = CapacityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let given = text.trim().to_owned();
        let size = match given.strip_suffix('%') {
            Some(percent) => share(percent.trim_end(), &given)?,
            None => match whole_number(&given) {
                Some(0) => return Err(CapacityError::Zero { given }),
                Some(chunks) => Size::Chunks(chunks),
                None => return Err(CapacityError::Unreadable { given }),
            },
        };
        Ok(Self { given, size })
    }
}

/// Digits and nothing else: no sign, no separators.
fn whole_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn share(percent: &str, given: &str) -> Result<Size, CapacityError> {
    let unreadable = || CapacityError::Unreadable {
        given: given.to_owned(),
    };
    let out_of_range = || CapacityError::ShareOutOfRange {
        given: given.to_owned(),
    };
    let (units, decimals) = percent.split_once('.').unwrap_or((percent, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(units) || !digits(decimals) || decimals.len() > MOST_DECIMALS {
        return Err(unreadable());
    }
    let units = whole_number(units)
        .filter(|&units| units <= 100)
        .ok_or_else(out_of_range)?;
    let scale = decimals.bytes().fold(1, |scale: u64, _| scale * 10);
    let parts = units * scale + whole_number(decimals).ok_or_else(unreadable)?;
    let whole = 100 * scale;
    if parts == 0 || parts > whole {
        return Err(out_of_range());
    }
    Ok(Size::Share { parts, whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(text: &str, unique: u64) -> Result<u64, CapacityError> {
        text.parse::<Capacity>()?.chunks_of(unique)
    }

    #[test]
    fn shares_are_floored_exactly() {
        for (text, unique, expected) in [
            ("1%", 170_899, 1708),
            ("2.5%", 51_197, 1279),
            // In binary floating point this is 28.999….
            ("29%", 100, 29),
            ("0.000000001%", 100_000_000_000, 1),
            ("100%", u64::MAX, u64::MAX),
            ("100.000%", 7, 7),
            (" 50 % ", 9, 4),
        ] {
            assert_eq!(chunks(text, unique), Ok(expected), "{text} of {unique}");
        }
    }

    #[test]
    fn numbers_of_chunks_stand_for_themselves() {
        assert_eq!(chunks("4096", 10), Ok(4096));
        let capacity: Capacity = " 4096".parse().expect("a number");
        assert_eq!(capacity.given(), "4096");
    }

    #[test]
    fn capacities_that_make_no_sense_are_refused() {
        for text in [
            "",
            "%",
            "abc",
            "-5",
            "+5",
            "1e3",
            "1_000",
            "5%%",
            ".5%",
            "5.%",
            "1,5%",
            "NaN%",
            "٣%",
            "99999999999999999999",
        ] {
            assert!(
                matches!(chunks(text, 1000), Err(CapacityError::Unreadable { .. })),
                "{text}"
            );
        }
        for text in ["0%", "0.000%", "100.1%", "150%", "99999999999999999999%"] {
            assert!(
                matches!(
                    chunks(text, 1000),
                    Err(CapacityError::ShareOutOfRange { .. })
                ),
                "{text}"
            );
        }
        assert!(matches!(chunks("0", 1000), Err(CapacityError::Zero { .. })));
        assert_eq!(
            chunks("1%", 99).map_err(|e| e.to_string()),
            Err("capacity \"1%\" of 99 unique chunks is less than one chunk".to_owned())
        );
    }
}
