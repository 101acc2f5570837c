//! Lines of a text of any size, in bounded memory.

use std::io::{self, BufRead, Read};

use crate::error::Fault;

/// What some editors write before the first line of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Yields the lines that hold something, and counts all.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
    limit: usize,
}

impl<R: BufRead> Lines<R> {
    /// Lines of at most `limit` bytes, the line feed included.
    pub(crate) fn new(input: R, limit: usize) -> Self {
        Self {
            input,
            line: Vec::new(),
            number: 0,
            bytes: 0,
            limit,
        }
    }

    /// Number of the line that was read last or could not be read, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of text read so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next line that is not blank, or none at the end of the text. Holds `limit + 1` bytes of
    /// a line at most.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, Fault> {
        loop {
            self.line.clear();
            let most = self.limit as u64 + 1;
            let read = self
                .input
                .by_ref()
                .take(most)
                .read_until(b'\n', &mut self.line);
            self.bytes += self.line.len() as u64;
            if matches!(read, Ok(0)) {
                return Ok(None);
            }
            self.number += 1;
            match read {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(Fault::Truncated);
                }
                Err(error) => return Err(Fault::Read(error)),
                Ok(read) if read > self.limit => {
                    return Err(Fault::LineTooLong { limit: self.limit });
                }
                Ok(_) => {}
            }
            let marked = self.number == 1 && self.line.starts_with(BYTE_ORDER_MARK);
            let start = if marked { BYTE_ORDER_MARK.len() } else { 0 };
            if !self.line[start..].trim_ascii().is_empty() {
                return Ok(Some(&self.line[start..]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_are_counted_and_skipped() {
        let mut lines = Lines::new(&b"\n  \r\na\n\nb"[..], 10);
        assert_eq!(lines.next().expect("reads"), Some(&b"a\n"[..]));
        assert_eq!(lines.number(), 3);
        assert_eq!(lines.next().expect("reads"), Some(&b"b"[..]));
        assert_eq!(lines.number(), 5);
        assert_eq!(lines.next().expect("reads"), None);
    }

    #[test]
    fn a_line_without_end_is_refused_at_the_limit_and_not_held() {
        let endless = io::BufReader::new(io::repeat(b'x'));
        let mut lines = Lines::new(endless, 1000);
        assert!(matches!(
            lines.next(),
            Err(Fault::LineTooLong { limit: 1000 })
        ));
        assert_eq!(lines.bytes(), 1001);
    }

    #[test]
    fn a_line_of_exactly_the_limit_is_read() {
        let mut lines = Lines::new(&b"1234\n12345\n"[..], 5);
        assert!(matches!(lines.next(), Ok(Some(b"1234\n"))));
        assert!(matches!(lines.next(), Err(Fault::LineTooLong { .. })));
        assert_eq!(lines.number(), 2);
    }
}
