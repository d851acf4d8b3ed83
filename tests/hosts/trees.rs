//! Many agents need the same new environment at the same moment: they pass it on along a tree.

use crate::environments::{Site, naming};
use hotlease_net::{CertificateRole, grpc};
use hotlease_tests::platform::{LIMIT, SOON};
use hotlease_tests::site::Daemon;
use hotlease_tests::wait::until_true;
use hotlease_wire::grpc::agent_client::AgentClient;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Largest number of agents that read from one agent, as the manager limits it.
const FAN_OUT: usize = 2;
const BYTES: usize = 8 << 20;
/// Rate in megabits a second: a copy takes two thirds of a second, however fast the processors are.
const RATE: u32 = 100;

/// A site with agents on all of these hosts.
struct Forest {
    agents: BTreeMap<String, Daemon>,
    ids: BTreeMap<String, String>,
    site: Site,
}

impl Forest {
    fn new(count: usize) -> Option<Self> {
        let names: Vec<String> = (1..=count).map(|number| format!("a{number}")).collect();
        let site = Site::of(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
        // One agent after the other: processes that a thread has started end with that thread.
        let start = |name: &String| {
            site.hosts.host(name).set_variable("HOTLEASE_LOG_FORMAT", "json");
            (name.clone(), site.agent(name))
        };
        let agents = names.iter().map(start).collect();
        let id = |name: &String| (site.listed(name).expect("it serves").id, name.clone());
        let ids = names.iter().map(id).collect();
        Some(Self { agents, ids, site })
    }

    fn names(&self) -> Vec<&str> {
        self.agents.keys().map(String::as_str).collect()
    }

    /// Puts an image of unique bytes into the store; returns its name and the bytes.
    fn publish(&self, seed: u64) -> (String, Vec<u8>) {
        let mut next = seed;
        let words = std::iter::repeat_with(|| {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            next.to_le_bytes()
        });
        let bytes: Vec<u8> = words.take(BYTES / 8).flatten().collect();
        (self.site.publish(&bytes), bytes)
    }

    fn limit(&self, rate: Option<u32>) {
        for name in self.names() {
            self.site.hosts.host(name).limit(rate);
        }
    }

    /// Has these agents fetch an image at the same time; each finds then that it is no image.
    fn ask(&self, hash: &str, names: &[&str]) {
        let asked = names.iter().map(|name| self.site.listed(name).expect("it serves"));
        let asked: Vec<_> = asked.map(|agent| agent.endpoint.parse().expect("an address")).collect();
        let (identity, request) = (self.site.client.identity(), naming(hash));
        self.site.client.block_on(async move {
            for address in asked {
                let (identity, request) = (Arc::clone(&identity), request.clone());
                tokio::spawn(async move {
                    let mut agent = AgentClient::new(grpc::channel(address, identity, CertificateRole::Agent));
                    // The answer is that it is no image, or after 2 s that it is still being fetched.
                    let _ = agent.grant_direct(request).await;
                });
            }
        });
    }

    fn until_all_have(&self, hash: &str, names: &[&str]) {
        let has = |name: &&str| self.site.cached(name, hash).exists();
        until_true("all have it", LIMIT, || names.iter().all(has));
    }

    /// Has these agents fetch an image; returns how long it took until the last agent had the image.
    fn fetch(&self, hash: &str, names: &[&str]) -> Duration {
        let begin = Instant::now();
        self.ask(hash, names);
        self.until_all_have(hash, names);
        begin.elapsed()
    }

    /// Value of a field in the last line with this message that an agent logged about an environment.
    fn told(&self, name: &str, words: &str, hash: &str, field: &str) -> Option<String> {
        let log = self.agents[name].log();
        let lines = log
            .lines()
            .rev()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut lines = lines.filter(|line| line["message"] == words && line["environment"] == hash);
        lines.next()?[field].as_str().map(str::to_owned)
    }

    /// Host of the agent from which this agent reads, or has read, an environment.
    fn above(&self, name: &str, hash: &str) -> Option<&str> {
        let id = self.told(name, "reading it from another agent", hash, "agent")?;
        Some(&self.ids[&id])
    }

    /// Number of agents from which this agent has begun to read an environment.
    fn readings(&self, name: &str, hash: &str) -> usize {
        let log = self.agents[name].log();
        let lines = log
            .lines()
            .filter(|line| line.contains("reading it from another agent"));
        lines.filter(|line| line.contains(hash)).count()
    }

    /// Source of each agent's copy: another agent's host, or none for the store.
    fn sources(&self, hash: &str, names: &[&str]) -> BTreeMap<String, Option<&str>> {
        let source = |name: &&str| {
            let mut from = None;
            until_true("it says where it has it from", SOON, || {
                from = self.told(name, "environment fetched", hash, "from");
                from.is_some()
            });
            let from = from.expect("told");
            let agent = from.strip_prefix("agent ").map(|id| self.ids[id].as_str());
            ((*name).to_owned(), agent)
        };
        names.iter().map(source).collect()
    }

    fn all_have_the_same(&self, hash: &str, names: &[&str], bytes: &[u8]) {
        for name in names {
            let found = fs::read(self.site.cached(name, hash)).expect("it came");
            assert!(found == bytes, "{name} has other bytes");
        }
    }
}

#[test]
fn many_agents_at_once_read_the_store_once_and_hand_it_on_in_a_tree() {
    const COUNT: usize = 12;
    let Some(forest) = Forest::new(COUNT) else { return };
    let names = forest.names();
    forest.limit(Some(RATE));
    let (hash, _) = forest.publish(1);
    let from_store = forest.fetch(&hash, &names[..1]);
    let from_another = forest.fetch(&hash, &names[1..2]);

    let (hash, bytes) = forest.publish(2);
    let sent = |name: &&str| forest.site.hosts.host(name).sent_bytes();
    let before: Vec<u64> = names.iter().map(sent).collect();
    let took = forest.fetch(&hash, &names);
    eprintln!("one from the store: {from_store:?}; one from another: {from_another:?}; {COUNT} at once: {took:?}");
    forest.all_have_the_same(&hash, &names, &bytes);

    let sources = forest.sources(&hash, &names);
    eprintln!("{sources:?}");
    assert_eq!(readers(&sources, None), 1, "of the store: {sources:?}");
    for (name, before) in names.iter().zip(before) {
        assert!(readers(&sources, Some(name)) <= FAN_OUT, "of {name}: {sources:?}");
        let sent = sent(name) - before;
        // The overhead around the pieces is small.
        assert!(sent <= (FAN_OUT * BYTES * 5 / 4) as u64, "{name} sent {sent} bytes");
    }
    let steps = |name: &&str| {
        let above = std::iter::successors(sources[*name], |above| sources[*above]);
        above.take(COUNT).count()
    };
    // Agents at each step from the store: 1, then 2, 4 and 5.
    assert_eq!(names.iter().map(steps).max(), Some(3), "{sources:?}");
    // One agent that sends to all others needs 7.4 s.
    assert!(took < SOON, "{took:?}");
}

fn readers(sources: &BTreeMap<String, Option<&str>>, of: Option<&str>) -> usize {
    sources.values().filter(|source| **source == of).count()
}

#[test]
fn agents_below_one_that_dies_while_it_sends_continue_from_others() {
    let Some(mut forest) = Forest::new(8) else { return };
    let (hash, bytes) = forest.publish(3);
    let (middle, child, below) = {
        let names = forest.names();
        forest.fetch(&hash, &names[..1]);
        // Slow enough for an agent to die in between.
        forest.limit(Some(10));
        forest.ask(&hash, &names[1..]);
        let mut chain = None;
        // The eighth agent is three steps from the first.
        until_true("an agent gets pieces that came through two others", LIMIT, || {
            let chains = names.iter().filter_map(|below| {
                let child = forest.above(below, &hash)?;
                Some((forest.above(child, &hash)?, child, *below))
            });
            chain = { chains }.find(|(middle, ..)| *middle != names[0]);
            chain.is_some_and(|(_, child, _)| forest.site.hosts.host(child).sent_bytes() > 300_000)
        });
        let (middle, child, below) = chain.expect("found");
        (middle.to_owned(), child.to_owned(), below.to_owned())
    };
    let mut dead = forest.agents.remove(&middle).expect("an agent");
    dead.kill();
    assert!(
        !forest.site.cached(&middle, &hash).exists(),
        "{middle} had all of it before it died"
    );
    forest.limit(None);
    let names = forest.names();
    forest.until_all_have(&hash, &names);
    forest.all_have_the_same(&hash, &names, &bytes);
    let sources = forest.sources(&hash, &names);
    eprintln!("without {middle}: {sources:?}");
    assert_eq!(readers(&sources, None), 1, "of the store: {sources:?}");
    // The child keeps what it had, so the transfer of the agent below it does not break off.
    assert_eq!((forest.readings(&child, &hash), forest.readings(&below, &hash)), (2, 1));
}

#[test]
fn receivers_notice_pieces_of_a_damaged_copy() {
    let Some(forest) = Forest::new(3) else { return };
    let names = forest.names();
    let (hash, bytes) = forest.publish(4);
    forest.fetch(&hash, &names[..1]);
    let mut damaged = bytes.clone();
    damaged[BYTES / 2] ^= 1;
    fs::write(forest.site.cached(names[0], &hash), &damaged).expect("damaged");
    forest.fetch(&hash, &names[1..]);
    forest.all_have_the_same(&hash, &names[1..], &bytes);
    let sources = forest.sources(&hash, &names[1..]);
    assert_eq!(readers(&sources, Some(names[0])), 0, "{sources:?}");
}
