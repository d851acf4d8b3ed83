//! Cost of a link through a store, compared with the same exchange written by hand ([`by_hand`]). Threads of this
//! process run ping-pong and allreduce over the link and by hand, in turns.
//!
//! ```text
//! redis-server --port 7777 --save "" &
//! cargo run --release --package hotlease-stores --example stores -- redis://127.0.0.1:7777
//! ```
//!
//! Other stores: `s3://bucket?endpoint=...` or `dynamodb://table?endpoint=...&region=...`, with credentials in the
//! environment. Objects that the hand-written exchange makes remain in the store, under keys that begin with
//! `by-hand/`. A word after the address selects the printed lines that contain this word.

#![allow(clippy::print_stdout, reason = "a program that prints")]

mod by_hand;

use by_hand::HandExchange;
use hotlease_comm::rendezvous::Server;
use hotlease_comm::{Communicator, LinkChoice, LinkKind, Operator, Options, Pattern, Rank, Secret};
use std::error::Error;
use std::sync::Barrier;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Number of turns of each side; the sides alternate. Each turn is short, so that the other load of the host is the
/// same for both sides.
const TURNS: usize = 41;

/// One rank, with the link and the exchange by hand.
struct Contender {
    all: Communicator,
    hand: Box<dyn HandExchange>,
    /// Number of this run, part of all names.
    run: u128,
    number: u64,
}

impl Contender {
    fn name(&self, of: Rank) -> String {
        format!("by-hand/{}/{}/{}/{of}", self.run, self.all.size(), self.number)
    }

    fn by_hand(&mut self, bytes: Option<&[u8]>, readers: Rank, of: &[Rank]) -> Outcome<Vec<Vec<u8>>> {
        let write = bytes.map(|bytes| (self.name(self.all.rank()), bytes, readers));
        let read: Vec<String> = of.iter().map(|of| self.name(*of)).collect();
        self.hand.exchange(write, &read)
    }

    fn ping_pong(&mut self, length: usize, is_ours: bool) -> Outcome<()> {
        let (me, other, mut bytes) = (self.all.rank(), 1 - self.all.rank(), vec![1; length]);
        self.number += 1;
        if is_ours {
            let receive = |bytes: &mut [u8]| self.all.receive(bytes, Pattern::of(other, 0));
            if me == 1 {
                receive(&mut bytes)?;
            }
            self.all.send(&bytes, other, 0)?;
            if me == 0 {
                receive(&mut bytes)?;
            }
        } else if me == 0 {
            self.by_hand(Some(&bytes), 1, &[other])?;
        } else {
            let bytes = self.by_hand(None, 0, &[other])?;
            self.by_hand(Some(&bytes[0]), 1, &[])?;
        }
        Ok(())
    }

    fn allreduce(&mut self, count: usize, is_ours: bool) -> Outcome<()> {
        let (me, ranks) = (self.all.rank(), self.all.size());
        let input = vec![1_u64; count];
        self.number += 1;
        if is_ours {
            let mut output = vec![0_u64; count];
            self.all.allreduce(&input[..], &mut output, &Operator::Sum)?;
        } else {
            let others: Vec<Rank> = (0..ranks).filter(|rank| *rank != me).collect();
            let bytes: Vec<u8> = input.iter().flat_map(|number| number.to_ne_bytes()).collect();
            let mut output = input;
            for term in self.by_hand(Some(&bytes), ranks - 1, &others)? {
                for (sum, number) in output.iter_mut().zip(term.chunks_exact(8)) {
                    *sum += u64::from_ne_bytes(number.try_into()?);
                }
            }
        }
        Ok(())
    }
}

/// Returns the median times of `one` over the link and by hand, and the median ratio. `times` is the number of runs of
/// `one` in each turn.
fn compare(
    ranks: &mut [Contender],
    times: usize,
    one: impl Fn(&mut Contender, bool) -> Outcome<()> + Sync,
) -> Outcome<[f64; 3]> {
    let (one, together) = (&one, &Barrier::new(ranks.len()));
    let took = std::thread::scope(|scope| {
        let threads = ranks.iter_mut().map(|rank| {
            scope.spawn(move || -> Outcome<[Vec<Duration>; 2]> {
                let mut took = [Vec::new(), Vec::new()];
                for turn in 0..2 * TURNS {
                    let is_ours = turn % 2 == 0;
                    together.wait();
                    let began = Instant::now();
                    (0..times).try_for_each(|_| one(rank, is_ours))?;
                    took[usize::from(!is_ours)].push(began.elapsed() / times as u32);
                }
                Ok(took)
            })
        });
        let threads: Vec<_> = threads.collect();
        let results = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        results.collect::<Outcome<Vec<_>>>()
    })?;
    // The first turn opens the connections and is left out.
    let [ours, by_hand] = [0, 1].map(|way| took[0][way][1..].iter().map(Duration::as_secs_f64));
    let ratios = ours.clone().zip(by_hand.clone()).map(|(ours, by_hand)| ours / by_hand);
    Ok([median(ours), median(by_hand), median(ratios)])
}

fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut of: Vec<f64> = of.collect();
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn members(link: &LinkChoice, address: &str, size: Rank) -> Outcome<Vec<Contender>> {
    let secret = Secret::new(b"the secret of this example")?;
    let server = Server::start("127.0.0.1:0", vec![secret.clone()], Default::default())?;
    let mut options = Options::new("stores", size, server.address().to_string(), secret);
    options.link = link.clone();
    options.stores = hotlease_stores::openers();
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    std::thread::scope(|scope| {
        let join = |rank| {
            let mut options = options.clone();
            options.rank = Some(rank);
            scope.spawn(move || -> Outcome<Contender> {
                Ok(Contender {
                    all: Communicator::join(&options)?,
                    hand: hand(address)?,
                    run,
                    number: 0,
                })
            })
        };
        let members: Vec<_> = (0..size).map(join).collect();
        members
            .into_iter()
            .map(|member| member.join().expect("no panic"))
            .collect()
    })
}

fn hand(address: &str) -> Outcome<Box<dyn HandExchange>> {
    Ok(match address.split_once("://") {
        Some(("s3", _)) => Box::new(by_hand::by_s3::open(address)?),
        Some(("dynamodb", _)) => Box::new(by_hand::by_dynamodb::open(address)?),
        _ => Box::new(by_hand::by_redis::open(address)?),
    })
}

fn finish(ranks: Vec<Contender>) {
    std::thread::scope(|scope| {
        for rank in ranks {
            scope.spawn(move || rank.all.finish().expect("everything is read"));
        }
    });
}

fn show(what: &str, [ours, by_hand, ratio]: [f64; 3]) {
    let [ours, by_hand] = [ours, by_hand].map(|seconds| seconds * 1e6);
    println!("{what:<34} {ours:>10.1} us {by_hand:>10.1} us by hand   x {ratio:.2}");
}

/// Number of repetitions in a turn: `fast` in Redis, where one repetition takes a fraction of a millisecond, and fewer
/// in other stores, where one takes several milliseconds.
fn times(kind: LinkKind, fast: usize) -> usize {
    match kind {
        LinkKind::Redis => fast,
        _ => (fast / 20).max(1),
    }
}

fn main() -> Outcome<()> {
    let address = std::env::args()
        .nth(1)
        .ok_or("which store? redis://host:port, s3://... or dynamodb://...")?;
    let only = std::env::args().nth(2).unwrap_or_default();
    let link: LinkChoice = address.parse()?;
    let kind = match &link {
        LinkChoice::S3(_) => LinkKind::S3,
        LinkChoice::DynamoDb(_) => LinkKind::DynamoDb,
        _ => LinkKind::Redis,
    };
    let lengths = [(8, 40), (1024, 40), (16 << 10, 30), (64 << 10, 20), (1 << 20, 4)];
    // An item of DynamoDB has at most 400 KiB.
    let lengths = lengths
        .into_iter()
        .filter(|(length, _)| kind != LinkKind::DynamoDb || *length < 400 << 10);
    let mut two = members(&link, &address, 2)?;
    for (length, fast) in lengths {
        let what = format!("ping-pong of {length} bytes");
        if what.contains(&only) {
            let took = compare(&mut two, times(kind, fast), |rank, is_ours| {
                rank.ping_pong(length, is_ours)
            })?;
            show(&what, took);
        }
    }
    finish(two);
    for size in [2, 4, 8] {
        let mut ranks = members(&link, &address, size)?;
        for (count, fast) in [(1, 60), (1024, 40)] {
            let what = format!("allreduce of {count} numbers, {size} ranks");
            if what.contains(&only) {
                let took = compare(&mut ranks, times(kind, fast), |rank, is_ours| {
                    rank.allreduce(count, is_ours)
                })?;
                show(&what, took);
            }
        }
        finish(ranks);
    }
    Ok(())
}
