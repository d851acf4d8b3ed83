//! Copies through one TCP connection to the slot: the usual way to move bytes between hosts.

use super::super::samples::Clock;
use super::fabric_lease::FabricLease;
use crate::bench::samples::Block;
use anyhow::{Context, bail, ensure};
use hotlease_client::Function;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const TOKEN_BYTES: usize = 16;
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);

/// Copies bytes into the slot.
pub(super) struct Tcp {
    sink: Function,
}

impl Tcp {
    pub(super) fn new(stage: &FabricLease) -> anyhow::Result<Self> {
        let sink = stage.invoker.function("tcp_sink")?.on_slot(0)?;
        Ok(Self { sink })
    }

    /// Times `count` copies of `source` to the slot, each until the slot confirms the last byte.
    pub(super) fn block(&self, clock: &Clock, source: &[u8], count: usize) -> anyhow::Result<Block> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        // Any process on this host can connect, but only the slot has the token.
        let token: [u8; TOKEN_BYTES] = rand::random();
        let input = [&token[..], listener.local_addr()?.to_string().as_bytes()].concat();
        let sink = self.sink.submit(&input)?;
        let mut stream = accept(&listener, &token)?;
        let mut answer = [0; 1];
        let block = clock.block(1, count, || {
            stream.write_all(&(source.len() as u64).to_le_bytes())?;
            stream.write_all(source)?;
            stream.read_exact(&mut answer)
        });
        drop(stream);
        sink.wait()?;
        let block = block.context("the copy through TCP stopped")?;
        ensure!(answer == [1], "the slot has not read every byte");
        Ok(block)
    }
}

/// Accepts the connection that sends the token, and closes all other connections.
fn accept(listener: &TcpListener, token: &[u8; TOKEN_BYTES]) -> anyhow::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let begin = Instant::now();
    while begin.elapsed() < CONNECTED_WITHIN {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(CONNECTED_WITHIN))?;
        let mut said = [0; TOKEN_BYTES];
        if stream.read_exact(&mut said).is_ok() && said == *token {
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            return Ok(stream);
        }
    }
    bail!("the slot has not connected within {CONNECTED_WITHIN:?}")
}
