//! The rows of a CSV file (RFC 4180), each with its first line.
//!
//! A quoted cell may contain commas, line ends and doubled quotation marks. White space around a cell is removed. Rows
//! may differ in length; blank lines are ignored.

use std::io::{self, Read};

use csv::{ErrorKind, Reader, ReaderBuilder, StringRecord, Trim};

/// Minimum of the bytes that one row may take; the limit is checked whenever the buffer is filled.
const LONGEST_ROW: usize = 1 << 20;

/// Reads rows one by one.
#[derive(Debug)]
pub struct Rows<'a> {
    bytes: &'a [u8],
    reader: Reader<Allowance<'a>>,
    cells: StringRecord,
    /// The newlines before this offset are counted in `line`.
    counted: usize,
    line: usize,
}

/// A row that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct RowError {
    /// The first line of the row, from 1.
    pub line: usize,
    pub problem: &'static str,
}

const NOT_TEXT: &str = "not UTF-8 text";
const OPEN_QUOTE: &str = "a quotation mark is opened and never closed";
const TOO_LONG: &str = "a row of more than 1 MiB";

impl<'a> Rows<'a> {
    /// Reads `bytes`; a byte order mark at the start is ignored.
    pub fn new(bytes: &'a [u8]) -> Self {
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(Trim::All)
            .from_reader(Allowance { rest: bytes, left: 0 });
        Self { bytes, reader, cells: StringRecord::new(), counted: 0, line: 1 }
    }

    /// The next row with its first line, from 1; nothing after the last row.
    ///
    /// # Errors
    /// A row that cannot be read.
    pub fn next_row(&mut self) -> Result<Option<(usize, &StringRecord)>, RowError> {
        loop {
            self.reader.get_mut().left = LONGEST_ROW;
            let from = self.place();
            let read = self.reader.read_record(&mut self.cells);
            let to = self.place();
            // The reader counts line ends before a row as part of the row.
            let ends = |byte: &&u8| matches!(byte, b'\r' | b'\n');
            let begin = from + self.bytes[from..].iter().take_while(ends).count();
            self.line += newlines(&self.bytes[self.counted..begin]);
            self.counted = begin;
            let wrong = |problem| Err(RowError { line: self.line, problem });
            match read.map_err(|error| error.into_kind()) {
                Ok(false) => return Ok(None),
                Ok(true) => {}
                Err(ErrorKind::Utf8 { .. }) => return wrong(NOT_TEXT),
                Err(_) => return wrong(TOO_LONG),
            }
            let row = self.bytes.get(begin..to).unwrap_or_default();
            if to == self.bytes.len() && row.iter().filter(|byte| **byte == b'"').count() % 2 == 1 {
                return wrong(OPEN_QUOTE);
            }
            if self.cells.len() > 1 || self.cells.get(0).is_some_and(|cell| !cell.is_empty()) {
                return Ok(Some((self.line, &self.cells)));
            }
        }
    }

    /// Number of bytes parsed.
    fn place(&self) -> usize {
        usize::try_from(self.reader.position().byte()).map_or(self.bytes.len(), |at| at.min(self.bytes.len()))
    }
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// Limits the bytes that are read before the next row, so that a row takes bounded memory.
#[derive(Debug)]
struct Allowance<'a> {
    rest: &'a [u8],
    left: usize,
}

impl Read for Allowance<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(self.left);
        if wanted == 0 && !buffer.is_empty() && !self.rest.is_empty() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let read = self.rest.read(&mut buffer[..wanted])?;
        self.left -= read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(bytes: &[u8]) -> Result<Vec<(usize, Vec<String>)>, RowError> {
        let mut rows = Rows::new(bytes);
        let mut found = Vec::new();
        while let Some((line, cells)) = rows.next_row()? {
            found.push((line, cells.iter().map(str::to_owned).collect()));
        }
        Ok(found)
    }

    fn check(text: &str, expected: &[(usize, &[&str])]) {
        let found = rows(text.as_bytes()).unwrap();
        let found: Vec<(usize, Vec<&str>)> =
            found.iter().map(|(line, cells)| (*line, cells.iter().map(String::as_str).collect())).collect();
        let found: Vec<(usize, &[&str])> =
            found.iter().map(|(line, cells)| (*line, cells.as_slice())).collect();
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn quoted_cells_hold_commas_quotes_and_line_ends() {
        check("a,\"b,c\",\"d \"\"e\"\"\"\n1,2,3\n", &[(1, &["a", "b,c", "d \"e\""]), (2, &["1", "2", "3"])]);
        check("\"a\nb\",2\n3,4", &[(1, &["a\nb", "2"]), (3, &["3", "4"])]);
    }

    #[test]
    fn lines_are_counted_through_blank_ones_and_both_line_ends() {
        check("\n \na,b\n\n\n1,2\n", &[(3, &["a", "b"]), (6, &["1", "2"])]);
        check("\u{feff}a , b\r\n\r\n1,\r\n", &[(1, &["a", "b"]), (3, &["1", ""])]);
        check("", &[]);
        check("\n \n", &[]);
    }

    #[test]
    fn errors_have_the_line_where_the_row_starts() {
        let error = |bytes: &[u8]| rows(bytes).unwrap_err();
        assert_eq!(error(b"a,b\n\n1,\xff\n"), RowError { line: 3, problem: NOT_TEXT });
        assert_eq!(error(b"a,b\n1,\"2\n3,4\n5,6\n"), RowError { line: 2, problem: OPEN_QUOTE });
        assert_eq!(error(b"a,\"b"), RowError { line: 1, problem: OPEN_QUOTE });
        let mut wide = b"a,b\n".to_vec();
        wide.resize(4 << 20, b',');
        assert_eq!(error(&wide), RowError { line: 2, problem: TOO_LONG });
        let mut quoted = b"a,b\n\"".to_vec();
        quoted.resize(4 << 20, b'\n');
        assert_eq!(error(&quoted), RowError { line: 2, problem: TOO_LONG });
    }

    #[test]
    fn the_row_limit_does_not_apply_to_the_file() {
        let many = "1,2\n".repeat(1 << 20);
        assert_eq!(rows(many.as_bytes()).unwrap().len(), 1 << 20);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_line_numbers_increase(text in "[a,\"\n\r ]{0,60}", bytes: Vec<u8>) {
            let _ = rows(&bytes);
            if let Ok(found) = rows(text.as_bytes()) {
                prop_assert!(found.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{found:?}");
            }
        }

        #[test]
        fn written_values_are_read_back(cells in proptest::collection::vec("[a,\"\n]{1,5}x", 1..6)) {
            let mut writer = csv::Writer::from_writer(Vec::new());
            writer.write_record(&cells).unwrap();
            let text = writer.into_inner().unwrap();
            let cells: Vec<String> = cells.iter().map(|cell| cell.trim().to_owned()).collect();
            prop_assert_eq!(rows(&text).unwrap(), vec![(1, cells)]);
        }
    }
}
