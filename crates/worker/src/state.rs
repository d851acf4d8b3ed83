//! The state that functions leave in this process: saved when its lease ends, and restored for the next one, by
//! functions of the program that hosts the worker, or of the library that it has loaded. They run on the slot's thread
//! between two invocations, so no function changes the state meanwhile.

use crate::control::WorkerLease;
use crate::function::context::Context;
use crate::function::state_hooks::StateHooks;
use crate::slot::mailbox::Letter;
use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc;

/// Functions of a host program that save and restore its functions' state. Each returns an error text on failure.
#[derive(Clone, Copy)]
pub struct StateFunctions {
    /// Checks whether the program can save and restore.
    pub check: fn() -> Result<(), String>,
    /// Reads this many bytes from the pipe, and restores the state from them.
    pub restore: fn(&mut File, u64) -> Result<(), String>,
    /// Saves the state in pieces.
    pub save: fn(&mut StatePieces<File>) -> Result<(), String>,
}

/// The party that saves and restores: the host program or a library.
#[derive(Clone)]
pub(crate) enum StateKeeper {
    Program(StateFunctions),
    Library(StateHooks),
}

impl StateKeeper {
    /// Checks whether a state could be saved.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Program(functions) => (functions.check)(),
            Self::Library(_) => Ok(()),
        }
    }

    pub fn restore(&self, context: &mut Context, mut pipe: File, bytes: u64) -> Result<(), String> {
        match self {
            Self::Program(functions) => (functions.restore)(&mut pipe, bytes),
            Self::Library(hooks) => hooks.restore(context, pipe, bytes),
        }
    }

    pub fn save(&self, context: &mut Context, pipe: File) -> Result<(), String> {
        let mut pieces = StatePieces::new(pipe);
        match self {
            Self::Program(functions) => (functions.save)(&mut pieces)?,
            Self::Library(hooks) => hooks.save(context, &mut pieces)?,
        }
        pieces.end().map_err(|error| error.to_string())
    }
}

/// Has the only slot of a worker run `job`, and waits for it. `job` returns its result, and whether the slot serves on.
pub(crate) fn run_on_slot(
    lease: &WorkerLease,
    job: impl FnOnce(&StateKeeper, &mut Context) -> (Result<(), String>, bool) + Send + 'static,
) -> Result<(), String> {
    let (Some(keeper), [slot]) = (lease.keeper.clone(), &lease.slots[..]) else {
        return Err("nothing in this worker says how its state is saved".into());
    };
    let (sender, done) = mpsc::sync_channel(1);
    slot.put(Letter::Job(Box::new(move |context| {
        let (result, serves_on) = job(&keeper, context);
        // The receiver waits below.
        let _ = sender.send(result);
        serves_on
    })));
    let gone = "the slot has ended";
    done.recv().unwrap_or_else(|mpsc::RecvError| Err(gone.into()))
}

/// Output of a state from this process: pieces, each with its length before it (64 bits, little endian), until an empty
/// piece. So the total length need not be known in advance.
pub struct StatePieces<W> {
    pipe: W,
    /// Small pieces that are sent as one: each piece costs two system calls here, and two at the receiver.
    gathered: Vec<u8>,
}

/// Size of the gathering buffer; larger pieces are sent without a copy.
const GATHER_BYTES: usize = 64 << 10;

impl<W: Write> StatePieces<W> {
    pub(crate) fn new(pipe: W) -> Self {
        let gathered = Vec::with_capacity(GATHER_BYTES);
        Self { pipe, gathered }
    }

    /// Adds bytes to the state.
    ///
    /// # Errors
    /// The pipe's reader is gone, or writing failed.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.gathered.len() + bytes.len() > GATHER_BYTES {
            self.send_gathered()?;
        }
        if bytes.len() > GATHER_BYTES {
            self.pipe(bytes.len())?.write_all(bytes)
        } else {
            self.gathered.extend_from_slice(bytes);
            Ok(())
        }
    }

    /// Starts a piece of `bytes` (not 0) bytes, which the caller must write to the returned pipe.
    ///
    /// # Errors
    /// The pipe's reader is gone, or writing failed.
    pub fn pipe(&mut self, bytes: usize) -> io::Result<&mut W> {
        self.send_gathered()?;
        self.pipe.write_all(&(bytes as u64).to_le_bytes())?;
        Ok(&mut self.pipe)
    }

    fn send_gathered(&mut self) -> io::Result<()> {
        if !self.gathered.is_empty() {
            self.pipe.write_all(&(self.gathered.len() as u64).to_le_bytes())?;
            self.pipe.write_all(&self.gathered)?;
            self.gathered.clear();
        }
        Ok(())
    }

    /// Sends the end mark.
    fn end(mut self) -> io::Result<()> {
        self.send_gathered()?;
        self.pipe.write_all(&0_u64.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits the bytes of a pipe into pieces.
    fn pieces(mut sent: &[u8]) -> Vec<&[u8]> {
        let mut pieces = Vec::new();
        loop {
            let (length, rest) = sent.split_first_chunk::<8>().expect("a length");
            let (piece, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
            if piece.is_empty() {
                assert!(rest.is_empty(), "{} bytes behind the end", rest.len());
                return pieces;
            }
            pieces.push(piece);
            sent = rest;
        }
    }

    #[test]
    fn small_writes_become_one_piece_and_large_ones_are_not_copied() {
        let mut sent = Vec::new();
        let mut out = StatePieces::new(&mut sent);
        let large = vec![7; GATHER_BYTES + 1];
        for bytes in [&b"a"[..], b"", b"bc", &large, b"d", &large[1..], b"e"] {
            out.add(bytes).expect("memory");
        }
        out.end().expect("memory");
        let expected: [&[u8]; 5] = [b"abc", &large, b"d", &large[1..], b"e"];
        assert_eq!(pieces(&sent), expected);
        let mut sent = Vec::new();
        StatePieces::new(&mut sent).end().expect("memory");
        assert_eq!(sent, [0; 8], "an empty state has no piece");
    }
}
