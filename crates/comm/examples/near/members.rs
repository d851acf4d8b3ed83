//! Two members as a candidate: this process, and a process that it starts.

use super::Exchange;
use hotlease_comm::rendezvous::Server;
use hotlease_comm::{Communicator, Options, Pattern, Secret};
use std::error::Error;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

pub struct MemberPair {
    name: &'static str,
    all: Communicator,
    _server: Server,
    other: Child,
    orders: ChildStdin,
    buffer: Vec<u8>,
}

fn options(address: &str, rank: u32, link: &str, spin: Duration) -> Result<Options, Box<dyn Error>> {
    let mut options = Options::new("near", 2, address, Secret::new(b"of this benchmark alone")?);
    options.rank = Some(rank);
    options.link = link.parse()?;
    options.spin = spin;
    Ok(options)
}

impl MemberPair {
    pub fn start(name: &'static str, link: &str, spin: Duration) -> Result<Self, Box<dyn Error>> {
        let secret = Secret::new(b"of this benchmark alone")?;
        let server = Server::start("127.0.0.1:0", vec![secret], Default::default())?;
        let address = server.address().to_string();
        let (name_of, processors) = super::raw::processors();
        let mut other = Command::new(std::env::current_exe()?)
            .env(name_of, processors)
            .args(["--member", &address, link, &spin.as_micros().to_string()])
            .stdin(Stdio::piped())
            .spawn()?;
        let orders = other.stdin.take().ok_or("no pipe")?;
        Ok(Self {
            name,
            all: Communicator::join(&options(&address, 0, link, spin)?)?,
            _server: server,
            other,
            orders,
            buffer: vec![0; 4 << 20],
        })
    }
}

impl Drop for MemberPair {
    fn drop(&mut self) {
        let _ = writeln!(self.orders, "end 0 0");
        let _ = self.other.wait();
    }
}

fn echo(all: &Communicator, buffer: &mut [u8]) -> Result<(), hotlease_comm::Error> {
    all.receive(buffer, Pattern::of(0, 1))?;
    all.send(buffer, 0, 1)
}

/// Runs the second member.
pub fn serve(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [address, link, spin] = arguments else {
        return Err("three arguments".into());
    };
    super::raw::pin(1)?;
    let all = Communicator::join(&options(address, 1, link, Duration::from_micros(spin.parse()?))?)?;
    let mut buffer = vec![0; 4 << 20];
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        let [what, bytes, rounds] = words[..] else { break };
        let (bytes, rounds): (usize, u32) = (bytes.parse()?, rounds.parse()?);
        match what {
            "ping" => {
                for _ in 0..rounds {
                    echo(&all, &mut buffer[..bytes])?;
                }
            }
            "stream" => {
                for _ in 0..rounds {
                    all.receive(&mut buffer[..bytes], Pattern::of(0, 1))?;
                }
                all.send(&[], 0, 1)?;
            }
            _ => break,
        }
    }
    Ok(())
}

impl Exchange for MemberPair {
    fn name(&self) -> &'static str {
        self.name
    }

    fn half_round_trip(&mut self, bytes: usize, batches: u32) -> Result<f64, Box<dyn Error>> {
        writeln!(self.orders, "ping {bytes} {}", super::rounds_of(batches))?;
        let buffer = &mut self.buffer[..bytes];
        Ok(super::least(batches, || {
            self.all.send(buffer, 1, 1)?;
            self.all.receive(buffer, Pattern::of(1, 1)).map(|_| ())
        })?)
    }

    fn stream(&mut self, bytes: usize, messages: u32) -> Result<f64, Box<dyn Error>> {
        writeln!(self.orders, "stream {bytes} {messages}")?;
        let began = Instant::now();
        for _ in 0..messages {
            self.all.send(&self.buffer[..bytes], 1, 1)?;
        }
        self.all.receive(&mut [], Pattern::of(1, 1))?;
        Ok(began.elapsed().as_secs_f64())
    }
}
