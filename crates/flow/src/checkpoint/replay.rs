//! Reader of a checkpoint: whole records, in order, and the damage between them.

use super::frame::{self, FileId, HEADER_BYTES, RECORD_MAGIC};
use super::{CheckpointRecord, VALUE_BYTES_MAX};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Number of bytes that are searched at a time for the next record.
const WINDOW: usize = 64 << 10;

/// Source of the bytes: a file, or memory.
pub(super) trait ByteSource {
    /// Reads from this offset, at most to the end. Returns fewer bytes than requested only at the end.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
}

impl ByteSource for File {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match FileExt::read_at(self, &mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

impl ByteSource for &[u8] {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset).map_or(self.len(), |offset| offset.min(self.len()));
        let bytes = into.len().min(self.len() - from);
        into[..bytes].copy_from_slice(&self[from..from + bytes]);
        Ok(bytes)
    }
}

/// A record or damage in the source.
#[derive(Debug)]
pub(super) enum ScanItem {
    Record(CheckpointRecord),
    /// Bytes that belong to no record.
    Damage {
        offset: u64,
        bytes: u64,
    },
}

/// Scan through the records of a source.
#[derive(Debug)]
pub(super) struct Scan<S> {
    source: S,
    id: FileId,
    at: u64,
    end: u64,
    /// A record that was found behind damage, to be returned next.
    next: Option<CheckpointRecord>,
}

impl<S: ByteSource> Scan<S> {
    pub fn new(source: S, id: FileId, end: u64) -> Self {
        Self {
            source,
            id,
            at: HEADER_BYTES as u64,
            end,
            next: None,
        }
    }

    /// Returns the next record or damage; `None` at the end, and after an error.
    pub fn next(&mut self) -> io::Result<Option<ScanItem>> {
        if let Some(record) = self.next.take() {
            return Ok(Some(ScanItem::Record(record)));
        }
        let begin = self.at;
        let found = self.next_record();
        if found.is_err() {
            self.at = self.end;
        }
        let (damage, record) = match found? {
            Some(record) => (record.offset - begin, Some(record)),
            None => (self.end - begin, None),
        };
        if damage == 0 {
            return Ok(record.map(ScanItem::Record));
        }
        self.next = record;
        Ok(Some(ScanItem::Damage {
            offset: begin,
            bytes: damage,
        }))
    }

    /// Returns the next whole record from here on. A record may begin at any offset, even inside the value of a torn
    /// record, because the next record was appended where the torn record ended.
    fn next_record(&mut self) -> io::Result<Option<CheckpointRecord>> {
        while self.at < self.end {
            if let Some(record) = self.record_here()? {
                self.at += (HEADER_BYTES + record.value.len()) as u64;
                return Ok(Some(record));
            }
            self.at += 1;
            self.skip()?;
        }
        Ok(None)
    }

    fn record_here(&self) -> io::Result<Option<CheckpointRecord>> {
        let mut header = [0; HEADER_BYTES];
        let room = self.end - self.at;
        if room < HEADER_BYTES as u64 || self.source.read_at(self.at, &mut header)? < HEADER_BYTES {
            return Ok(None);
        }
        let Some(known) = frame::decode_record(self.id, self.at, &header) else {
            return Ok(None);
        };
        if known.value_bytes > VALUE_BYTES_MAX || known.value_bytes > room - HEADER_BYTES as u64 {
            return Ok(None);
        }
        let mut value = vec![0; known.value_bytes as usize];
        let read = self.source.read_at(self.at + HEADER_BYTES as u64, &mut value)?;
        let whole = read == value.len() && frame::value_sum(&value) == known.value_sum;
        Ok(whole.then_some(CheckpointRecord {
            key: known.key,
            value,
            offset: self.at,
        }))
    }

    /// Moves to the next offset where a record may begin, or to the end.
    fn skip(&mut self) -> io::Result<()> {
        let mut window = vec![0; WINDOW.min((self.end - self.at) as usize)];
        while self.at < self.end {
            let wanted = window.len().min((self.end - self.at) as usize);
            let read = self.source.read_at(self.at, &mut window[..wanted])?;
            let here = &window[..read];
            if let Some(found) = here.windows(RECORD_MAGIC.len()).position(|four| *four == RECORD_MAGIC) {
                self.at += found as u64;
                return Ok(());
            }
            // The last three bytes may be the beginning of the magic.
            match read.checked_sub(RECORD_MAGIC.len() - 1).filter(|passed| *passed > 0) {
                Some(passed) => self.at += passed as u64,
                None => self.at = self.end,
            }
        }
        Ok(())
    }
}
