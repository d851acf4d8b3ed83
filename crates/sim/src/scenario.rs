//! Faults and load of a site, drawn from a seed before it runs.

use crate::node::Node;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::time::Duration;

/// Latest end of all faults.
pub const FAULTS_MAX: Duration = Duration::from_secs(40);
/// Time from the last fault until clients submit their last invocations.
pub const SETTLE: Duration = Duration::from_secs(15);
/// Time after the last submission until everything must be at rest. It is longer than any sequence of patience, lease
/// and back-off.
pub const CONVERGE: Duration = Duration::from_secs(40);

/// A time in which messages of one direction are held back or lost.
#[derive(Debug, Clone, Copy)]
pub struct Outage {
    pub from: Node,
    pub to: Node,
    pub begin: Duration,
    /// `None`: the outage is permanent.
    pub end: Option<Duration>,
}

/// A time in which a node is stopped; it continues later.
#[derive(Debug, Clone, Copy)]
pub struct Pause {
    pub node: Node,
    pub begin: Duration,
    pub end: Duration,
}

/// Order of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorOrder {
    /// The node offers all its resources, and grants leases.
    AddAll,
    /// The node offers this number of cores; leases that hold more end within this time.
    Offer { cores: u32, within: Duration },
    /// The node is given back within this time.
    Drain { within: Duration },
    /// The node grants leases again.
    Resume,
    /// The node is given back at once.
    Remove,
}

/// Faults and load of a site.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    /// Cores of each agent.
    pub agents: Vec<u32>,
    /// GPUs of each agent.
    pub gpus: Vec<u32>,
    pub clients: Vec<ClientPlan>,
    pub drift_ppm_max: i32,
    /// Probability that a datagram is lost, or that a segment of a stream must be sent again.
    pub loss: f64,
    pub duplicates: f64,
    /// Longest delay of a message between nodes.
    pub delay_max: Duration,
    /// Probability that the longest delay of a message is ten times as long.
    pub stragglers: f64,
    /// Probability that a process dies at a step.
    pub crashes: f64,
    /// Probability that a worker dies while it runs a function.
    pub worker_crashes: f64,
    /// Probability that a write fails.
    pub write_errors: f64,
    pub write_max: Duration,
    /// Probability that a crash loses the disk of an agent, rather than the end of its journal.
    pub disk_losses: f64,
    pub outages: Vec<Outage>,
    pub pauses: Vec<Pause>,
    /// Orders of operators: time, agent, order.
    pub orders: Vec<(Duration, usize, OperatorOrder)>,
    /// Number of slots that can share a core, for each agent.
    pub places_per_core: u32,
    /// End of all faults.
    pub faults_end: Duration,
}

/// Behaviour of a client.
#[derive(Debug, Clone)]
pub struct ClientPlan {
    /// Whether it requests leases from agents directly.
    pub direct: bool,
    pub cores: u32,
    /// GPUs for each of the cores.
    pub gpus: u32,
    /// Whether it uses shared cores instead of its own cores.
    pub shared: bool,
    /// Number of workers with `cores` cores each, over several agents; 0: one worker on one agent.
    pub spread_workers: u32,
    pub ttl: Duration,
    pub patience: Duration,
    /// Mean pause between invocations.
    pub pause: Duration,
    /// Longest running time of a function.
    pub takes_max: Duration,
    /// Agent on whose node the client is, if any.
    pub at_home: Option<usize>,
    /// Whether it releases leases through the manager.
    pub through_manager: bool,
}

fn millis(random: &mut SmallRng, from: u64, to: u64) -> Duration {
    Duration::from_micros(random.random_range(from * 1000..=to * 1000))
}

impl Scenario {
    /// Scenario of a seed.
    pub fn new(seed: u64) -> Self {
        let random = &mut SmallRng::seed_from_u64(seed);
        let faults_end = millis(random, 3_000, FAULTS_MAX.as_millis() as u64);
        let agents: Vec<u32> = (0..random.random_range(1..=3))
            .map(|_| random.random_range(1..=4))
            .collect();
        let clients = (0..random.random_range(1..=3))
            .map(|_| ClientPlan::new(random, &agents))
            .collect();
        // Most sites have only some kinds of faults, because one kind may hide the effects of another.
        let often = |random: &mut SmallRng, most: f64| {
            if random.random_bool(0.5) {
                random.random_range(0.0..most)
            } else {
                0.0
            }
        };
        let mut scenario = Self {
            seed,
            drift_ppm_max: if random.random_bool(0.5) { 10_000 } else { 100 },
            loss: often(random, 0.2),
            duplicates: often(random, 0.2),
            delay_max: millis(random, 1, 100),
            stragglers: often(random, 0.1),
            crashes: if random.random_bool(0.2) {
                random.random_range(0.003..0.05)
            } else {
                often(random, 0.003)
            },
            worker_crashes: often(random, 0.1),
            write_errors: often(random, 0.1),
            write_max: if random.random_bool(0.2) {
                millis(random, 100, 3_000)
            } else {
                millis(random, 1, 20)
            },
            disk_losses: often(random, 0.5),
            outages: Vec::new(),
            pauses: Vec::new(),
            orders: Vec::new(),
            places_per_core: random.random_range(1..=4),
            faults_end,
            gpus: vec![0; agents.len()],
            agents,
            clients,
        };
        scenario.draw_faults(random);
        scenario.draw_gpus();
        scenario
    }

    /// Gives GPUs to some sites, and clients that request them. They are drawn from a separate generator, so that all
    /// other choices stay the same.
    fn draw_gpus(&mut self) {
        let random = &mut SmallRng::seed_from_u64(!self.seed);
        if random.random_bool(0.5) {
            self.gpus.fill_with(|| random.random_range(0..=3));
            for client in &mut self.clients {
                client.gpus = u32::from(random.random_bool(0.4));
            }
        }
    }

    fn draw_faults(&mut self, random: &mut SmallRng) {
        let nodes = self.nodes();
        let last = self.faults_end.as_millis() as u64;
        let moment = |random: &mut SmallRng, most: u64| {
            let begin = millis(random, 0, last);
            let end = (begin + millis(random, 1, most)).min(Duration::from_millis(last));
            (begin, end)
        };
        if random.random_bool(0.5) {
            for _ in 0..random.random_range(1..6) {
                let (from, to) = (pick(random, &nodes), pick(random, &nodes));
                let (begin, end) = moment(random, 15_000);
                let end = Some(end);
                self.outages.push(Outage { from, to, begin, end });
                if random.random_bool(0.5) {
                    self.outages.push(Outage {
                        from: to,
                        to: from,
                        begin,
                        end,
                    });
                }
            }
        }
        if random.random_bool(0.4) {
            for _ in 0..random.random_range(1..4) {
                let node = pick(random, &nodes);
                let (begin, end) = moment(random, 10_000);
                self.pauses.push(Pause { node, begin, end });
            }
        }
        if random.random_bool(0.2) {
            let (from, to) = (pick(random, &nodes), pick(random, &nodes));
            let begin = moment(random, 1).0;
            if from != to {
                self.outages.push(Outage {
                    from,
                    to,
                    begin,
                    end: None,
                });
            }
        }
        if random.random_bool(0.3) {
            let agent = random.random_range(0..self.agents.len());
            let (begin, _) = moment(random, 1);
            let notice = if random.random_bool(0.5) {
                Duration::ZERO
            } else {
                millis(random, 1, 5_000)
            };
            self.orders
                .push((begin, agent, OperatorOrder::Drain { within: notice }));
        }
        if random.random_bool(0.4) {
            for _ in 0..random.random_range(1..6) {
                let agent = random.random_range(0..self.agents.len());
                let order = OperatorOrder::draw(random, self.agents[agent]);
                self.orders.push((moment(random, 1).0, agent, order));
            }
        }
        self.orders.sort_by_key(|(at, ..)| *at);
        // Finally all nodes serve again. These orders follow all orders that waited while the manager's node was
        // paused.
        let last = self.faults_end + Duration::from_millis(1);
        let ordered: BTreeSet<usize> = self.orders.iter().map(|(_, agent, _)| *agent).collect();
        for agent in ordered {
            self.orders.push((last, agent, OperatorOrder::AddAll));
        }
    }

    /// All nodes.
    pub fn nodes(&self) -> Vec<Node> {
        let agents = (0..self.agents.len()).map(Node::Agent);
        let clients = (0..self.clients.len()).map(Node::Client);
        std::iter::once(Node::Manager).chain(agents).chain(clients).collect()
    }

    /// Time after which clients submit nothing more.
    pub fn last_work(&self) -> Duration {
        self.faults_end + SETTLE
    }

    /// Time at which everything must be at rest.
    pub fn end(&self) -> Duration {
        self.last_work() + CONVERGE
    }

    /// Whether these two nodes are on the same host, so that no message between them crosses a network.
    pub fn is_same_node(&self, one: Node, other: Node) -> bool {
        match (one, other) {
            (Node::Client(client), Node::Agent(agent)) | (Node::Agent(agent), Node::Client(client)) => {
                self.clients[client].at_home == Some(agent)
            }
            _ => one == other,
        }
    }

    /// Whether messages of this direction are cut off permanently.
    pub fn is_cut(&self, from: Node, to: Node) -> bool {
        let cut = |outage: &Outage| outage.end.is_none() && outage.from == from && outage.to == to;
        !self.is_same_node(from, to) && self.outages.iter().any(cut)
    }

    /// Whether messages in at least one direction between these two nodes are cut off permanently.
    pub fn are_apart(&self, one: Node, other: Node) -> bool {
        self.is_cut(one, other) || self.is_cut(other, one)
    }

    /// Earliest time, not before `at`, at which a message can cross; `None` if no message can cross any more.
    pub fn next_crossing(&self, from: Node, to: Node, mut at: Duration) -> Option<Duration> {
        loop {
            let covers = |outage: &&Outage| {
                outage.from == from && outage.to == to && outage.begin <= at && outage.end.is_none_or(|end| at < end)
            };
            match self.outages.iter().find(covers) {
                None => return Some(at),
                Some(outage) => at = outage.end?,
            }
        }
    }

    /// The later of `at` and the end of the node's last pause before `now`. Until that time the node could not act.
    pub fn awake_since(&self, node: Node, at: Duration, now: Duration) -> Duration {
        let over = self
            .pauses
            .iter()
            .filter(|pause| pause.node == node && pause.end <= now);
        over.map(|pause| pause.end).fold(at, Duration::max)
    }

    /// End of the pause if the node is paused at this time. If pauses overlap, the end of the last pause applies to all
    /// events in between, so that no event overtakes an earlier one.
    pub fn pause_end(&self, node: Node, at: Duration) -> Option<Duration> {
        let mut end = at;
        while let Some(pause) = self
            .pauses
            .iter()
            .find(|pause| pause.node == node && pause.begin <= end && end < pause.end)
        {
            end = pause.end;
        }
        (end > at).then_some(end)
    }
}

impl OperatorOrder {
    fn draw(random: &mut SmallRng, cores: u32) -> Self {
        let within = match random.random_bool(0.3) {
            true => Duration::ZERO,
            false => millis(random, 1, 5_000),
        };
        match random.random_range(0..6) {
            0 => Self::AddAll,
            1 => Self::Remove,
            2 => Self::Drain { within },
            3 => Self::Offer {
                // An agent rejects an offer of more cores than it has.
                cores: random.random_range(0..=cores + 1),
                within,
            },
            _ => Self::Resume,
        }
    }
}

fn pick(random: &mut SmallRng, nodes: &[Node]) -> Node {
    nodes[random.random_range(0..nodes.len())]
}

impl ClientPlan {
    fn new(random: &mut SmallRng, agents: &[u32]) -> Self {
        let at_home = random.random_range(0..agents.len());
        Self {
            direct: random.random_bool(0.3),
            cores: random.random_range(1..=2),
            gpus: 0,
            shared: random.random_bool(0.4),
            ttl: if random.random_bool(0.5) {
                Duration::from_secs(5)
            } else {
                millis(random, 300, 3_000)
            },
            patience: millis(random, 0, 12_000),
            pause: millis(random, 5, 1_000),
            takes_max: millis(random, 1, 400),
            at_home: random.random_bool(0.3).then_some(at_home),
            through_manager: random.random_bool(0.3),
            spread_workers: if random.random_bool(0.3) {
                random.random_range(2..=5)
            } else {
                0
            },
        }
    }
}
