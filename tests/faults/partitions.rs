//! Partitions between hosts: of all packets, of one direction, of one pair of hosts, and repeated short partitions.

use hotlease_lease::ledger::covers;
use hotlease_tests::faults::caller::{Client, Steady};
use hotlease_tests::faults::ledger::{self, Operator};
use hotlease_tests::faults::row::Row;
use hotlease_tests::faults::scale::{COUNTS, Runs, mostly_short, random, seed, times};
use hotlease_tests::faults::tally::Tally;
use hotlease_tests::hosts::Hosts;
use hotlease_tests::platform::locks::cause_faults_alone;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::site::{Authority, Daemon, ManagerDaemon, agent};
use hotlease_tests::wait::until_true;
use rand::RngExt;
use rand::rngs::StdRng;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time to live of all leases here.
const TTL: Duration = Duration::from_secs(2);
/// Time for which a client looks for another lease for a call that did not start.
const MOVES: Duration = Duration::from_secs(1);
/// Extra time until a call is told that its host is gone, with the delay of a busy machine.
const TOLD: Duration = Duration::from_millis(1500);
/// Time until calls go on after the network is whole again: the silence is noticed, the connection is made again, a
/// lease that is over is given up, and another lease is taken.
const WHOLE: Duration = Duration::from_secs(5);

/// A manager on `m`, an agent on `a`, a client on `c`.
struct Site {
    client: Option<Client>,
    tally: Arc<Tally>,
    _agent: Daemon,
    _manager: ManagerDaemon,
    _authority: Authority,
    hosts: Hosts,
    start: Instant,
}

impl Site {
    fn new(seed: u64) -> Option<Self> {
        let hosts = Hosts::new(&["m", "a", "c"])?;
        let authority = Authority::new();
        let manager = ManagerDaemon::start(hosts.host("m"), &authority);
        let agent = agent(hosts.host("a"), &authority, &manager.address, &["alice"], &[]);
        let tally = Arc::new(Tally::new());
        let mut command = hosts
            .host("c")
            .command(Path::new(env!("CARGO_BIN_EXE_hotlease-test-tally")));
        command
            .env("HOTLEASE_MANAGER", manager.address.to_string())
            .env("HOTLEASE_IDENTITY", authority.client("alice"));
        let how = Steady {
            seed,
            pause: Duration::from_millis(30),
            ..Steady::default()
        };
        let mut site = Self {
            client: None,
            tally,
            _agent: agent,
            _manager: manager,
            _authority: authority,
            hosts,
            start: Instant::now(),
        };
        let begun = Instant::now();
        while !site.serves() {
            assert!(begun.elapsed() < LIMIT, "the agent does not register");
        }
        site.client = Some(Client::start(command, &site.tally, &how));
        Some(site)
    }

    fn serves(&self) -> bool {
        let output = self.run(&["agents", "--json"]);
        String::from_utf8_lossy(&output.stdout).contains("serving")
    }

    fn client(&self) -> &Client {
        self.client.as_ref().expect("it calls")
    }
}

impl Operator for Site {
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.hosts.host("m").command(&program("hotlease"));
        command.args(arguments).output().expect("hotlease runs")
    }

    fn journals(&self) -> Vec<String> {
        let state: PathBuf = self.hosts.host("a").directory().join("state/agent");
        vec![state.display().to_string()]
    }
}

/// Packets that are lost.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// All packets from and to a host.
    Host(&'static str),
    /// All packets that arrive at a host.
    Deaf(&'static str),
    /// All packets that arrive at a host from another host.
    DeafTo(&'static str, &'static str),
}

const CUTS: [Cut; 12] = [
    Cut::Host("m"),
    Cut::Host("a"),
    Cut::Host("c"),
    Cut::Deaf("m"),
    Cut::Deaf("a"),
    Cut::Deaf("c"),
    Cut::DeafTo("a", "m"),
    Cut::DeafTo("m", "a"),
    Cut::DeafTo("a", "c"),
    Cut::DeafTo("c", "a"),
    Cut::DeafTo("m", "c"),
    Cut::DeafTo("c", "m"),
];

impl Cut {
    fn set(self, hosts: &Hosts, cut: bool) {
        let there = match self {
            Self::Host(host) => {
                hosts.host(host).link(!cut);
                true
            }
            Self::Deaf(host) => hosts.host(host).deaf(cut),
            Self::DeafTo(host, to) => hosts.host(host).deaf_to(cut.then(|| hosts.host(to))),
        };
        assert!(there, "partitions of one direction need nftables");
    }

    /// Whether the packets of a call pass the cut.
    fn is_in_the_way_of_calls(self) -> bool {
        match self {
            Self::Host(host) | Self::Deaf(host) => host != "m",
            Self::DeafTo(host, to) => host != "m" && to != "m",
        }
    }
}

fn one(site: &Site, cut: Cut, flaps: bool, random: &mut StdRng, row: &mut Row) {
    let told = site.client().told();
    let whole = Instant::now();
    told.until_success_after(whole, LIMIT);
    if !cut.is_in_the_way_of_calls() {
        // A lease whose renewals the previous cut held up, and the pauses of its connection after that, may end until
        // now.
        until_true("calls go on for as long as a lease", LIMIT, || {
            let calm = Instant::now().checked_sub(TTL + TOLD).unwrap_or(whole);
            whole <= calm && told.failure_after(calm).is_none()
        });
        told.until_success_after(Instant::now(), LIMIT);
    }
    let long = mostly_short(random, Duration::from_millis(200), Duration::from_secs(8));
    let began = Instant::now();
    loop {
        cut.set(&site.hosts, true);
        let left = (began + long).saturating_duration_since(Instant::now());
        if !flaps {
            std::thread::sleep(left);
            break;
        }
        std::thread::sleep(Duration::from_millis(random.random_range(20..600)).min(left));
        cut.set(&site.hosts, false);
        let left = (began + long).saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(Duration::from_millis(random.random_range(20..600)).min(left));
    }
    cut.set(&site.hosts, false);
    let healed = Instant::now();
    if cut.is_in_the_way_of_calls() {
        row.took("calls again in", Some(WHOLE), told.until_success_after(healed, LIMIT));
        row.took("longest call", Some(TTL + TOLD + MOVES), told.longest_call_after(began));
    } else {
        told.until_success_after(healed, LIMIT);
        row.took(
            "longest pause of calls that the cut does not touch",
            None,
            told.longest_gap_after(began),
        );
        assert_eq!(told.failure_after(began), None, "a call has nothing to do with {cut:?}");
    }
    let begun = Instant::now();
    while !site.serves() {
        assert!(begun.elapsed() < LIMIT, "the agent does not come back after {cut:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    row.took("agent serving again in", Some(WHOLE), healed.elapsed());
}

#[test]
fn partitions_resolve_every_call_in_time_and_everything_converges_afterwards() {
    let _alone = cause_faults_alone();
    let seed = seed();
    if Hosts::new(&["m"]).is_none() {
        return;
    }
    let new_row = || {
        Row::new(
            "full, asymmetric and flapping partitions between manager, agent and client, for 0.2 to 8 s",
            "every call is resolved by TTL + 1 s, or has moved within `move_within` (here 1 s) after that; nothing runs twice; all converge afterwards",
            "partitions::partitions_resolve_every_call_in_time_and_everything_converges_afterwards",
            seed,
        )
    };
    let runs = Runs {
        lanes: 4,
        runs: times(COUNTS.partitions),
        seed,
    };
    let row = runs.make(
        new_row,
        |lane| Site::new(seed.wrapping_add(lane.into())).expect("hosts"),
        |site, run, row| {
            let mut random = random(seed, run);
            let cut = CUTS[(run as usize + seed as usize) % CUTS.len()];
            one(site, cut, run % 3 == 2, &mut random, row);
        },
        |mut site, _| {
            let (outcomes, told) = site.client.take().expect("it calls").finish();
            assert!(
                outcomes.iter().any(|outcome| outcome.failed.is_none()),
                "no call was answered"
            );
            let bill = ledger::until_billed(&site, &told);
            ledger::not_over_billed(&bill, site.tally.total(), 1, site.start);
            assert!(told.iter().all(|(lease, used)| covers(bill[lease], *used)));
        },
    );
    row.finish();
}
