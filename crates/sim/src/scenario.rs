//! What happens to a site: drawn from a seed before anything runs.

use crate::node::Node;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::time::Duration;

/// From then on nothing fails any more.
pub const FAULTS_MAX: Duration = Duration::from_secs(40);
/// How long after the last fault clients submit their last invocations.
pub const SETTLE: Duration = Duration::from_secs(15);
/// How long after those everything must have come to rest: longer than any patience, lease and back-off that
/// can follow each other.
pub const CONVERGE: Duration = Duration::from_secs(40);

/// Messages of one direction are held or lost.
#[derive(Debug, Clone, Copy)]
pub struct Outage {
    pub from: Node,
    pub to: Node,
    pub begin: Duration,
    /// None: it stays.
    pub end: Option<Duration>,
}

/// A node is stopped and goes on later.
#[derive(Debug, Clone, Copy)]
pub struct Pause {
    pub node: Node,
    pub begin: Duration,
    pub end: Duration,
}

/// What an operator orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The node offers all it has, and takes leases.
    AddAll,
    /// It offers so many cores, and leases that hold more end by then.
    Offer { cores: u32, within: Duration },
    /// It is given back within so long.
    Drain { within: Duration },
    /// It takes leases again.
    Resume,
    /// It is given back at once.
    Remove,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    /// Cores of each agent.
    pub agents: Vec<u32>,
    /// GPUs of each agent.
    pub gpus: Vec<u32>,
    pub clients: Vec<ClientPlan>,
    pub drift_ppm_max: i32,
    /// Probability that a datagram is lost, or a stream's segment has to be sent again.
    pub loss: f64,
    pub duplicates: f64,
    /// Of a message between nodes.
    pub delay_max: Duration,
    /// Probability that a message takes up to ten times as long.
    pub stragglers: f64,
    /// Probability that a process dies at a step.
    pub crashes: f64,
    /// The same for a worker that runs a function.
    pub worker_crashes: f64,
    /// Probability that a write is not made.
    pub write_errors: f64,
    pub write_max: Duration,
    /// Probability that a crash loses the disk of an agent, rather than the end of its journal.
    pub disk_losses: f64,
    pub outages: Vec<Outage>,
    pub pauses: Vec<Pause>,
    /// What operators order, of which agents, and when.
    pub orders: Vec<(Duration, usize, Order)>,
    /// Places of each agent on a core that is shared.
    pub places_per_core: u32,
    /// From then on nothing fails any more.
    pub faults_end: Duration,
}

/// A client's habits.
#[derive(Debug, Clone)]
pub struct ClientPlan {
    /// It asks agents itself.
    pub direct: bool,
    pub cores: u32,
    /// GPUs for each of the cores.
    pub gpus: u32,
    /// Places on shared cores, instead of cores of its own.
    pub shared: bool,
    /// Workers of that many cores each, over several agents; 0: one, on one.
    pub spread_workers: u32,
    pub ttl: Duration,
    pub patience: Duration,
    /// Mean pause between invocations.
    pub pause: Duration,
    /// Longest function.
    pub takes_max: Duration,
    /// The agent on whose node it is.
    pub at_home: Option<usize>,
    /// It ends leases through the manager.
    pub through_manager: bool,
}

fn millis(random: &mut SmallRng, from: u64, to: u64) -> Duration {
    Duration::from_micros(random.random_range(from * 1000..=to * 1000))
}

impl Scenario {
    /// The one of this seed.
    pub fn new(seed: u64) -> Self {
        let random = &mut SmallRng::seed_from_u64(seed);
        let faults_end = millis(random, 3_000, FAULTS_MAX.as_millis() as u64);
        let agents: Vec<u32> = (0..random.random_range(1..=3))
            .map(|_| random.random_range(1..=4))
            .collect();
        let clients = (0..random.random_range(1..=3))
            .map(|_| ClientPlan::new(random, &agents))
            .collect();
        // Most sites have some kinds of faults only: what one hides, another shows.
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

    /// In some sites there are GPUs, and clients that want them. (Drawn apart, so that they change nothing else.)
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
            self.orders.push((begin, agent, Order::Drain { within: notice }));
        }
        if random.random_bool(0.4) {
            for _ in 0..random.random_range(1..6) {
                let agent = random.random_range(0..self.agents.len());
                let order = Order::draw(random, self.agents[agent]);
                self.orders.push((moment(random, 1).0, agent, order));
            }
        }
        self.orders.sort_by_key(|(at, ..)| *at);
        // At last everybody serves again: after what the operator wanted while its machine stood still.
        let last = self.faults_end + Duration::from_millis(1);
        let ordered: BTreeSet<usize> = self.orders.iter().map(|(_, agent, _)| *agent).collect();
        for agent in ordered {
            self.orders.push((last, agent, Order::AddAll));
        }
    }

    /// Everybody.
    pub fn nodes(&self) -> Vec<Node> {
        let agents = (0..self.agents.len()).map(Node::Agent);
        let clients = (0..self.clients.len()).map(Node::Client);
        std::iter::once(Node::Manager)
            .chain(agents)
            .chain(clients)
            .collect()
    }

    /// When clients submit nothing more.
    pub fn last_work(&self) -> Duration {
        self.faults_end + SETTLE
    }

    /// When everything must have come to rest.
    pub fn end(&self) -> Duration {
        self.last_work() + CONVERGE
    }

    /// Whether nothing between these two crosses a network.
    pub fn is_one_machine(&self, one: Node, other: Node) -> bool {
        match (one, other) {
            (Node::Client(client), Node::Agent(agent)) | (Node::Agent(agent), Node::Client(client)) => {
                self.clients[client].at_home == Some(agent)
            }
            _ => one == other,
        }
    }

    /// Whether messages of this direction never arrive any more.
    pub fn is_cut(&self, from: Node, to: Node) -> bool {
        let cut = |outage: &Outage| outage.end.is_none() && outage.from == from && outage.to == to;
        !self.is_one_machine(from, to) && self.outages.iter().any(cut)
    }

    /// Whether these two cannot have a conversation any more.
    pub fn are_apart(&self, one: Node, other: Node) -> bool {
        self.is_cut(one, other) || self.is_cut(other, one)
    }

    /// The earliest moment not before `at` at which a message can cross; none: never.
    pub fn crosses(&self, from: Node, to: Node, mut at: Duration) -> Option<Duration> {
        loop {
            let covers = |outage: &&Outage| {
                outage.from == from
                    && outage.to == to
                    && outage.begin <= at
                    && outage.end.is_none_or(|end| at < end)
            };
            match self.outages.iter().find(covers) {
                None => return Some(at),
                Some(outage) => at = outage.end?,
            }
        }
    }

    /// The later of this moment and the end of the node's last pause until now: it could do nothing before.
    pub fn awake_since(&self, node: Node, at: Duration, now: Duration) -> Duration {
        let over = self
            .pauses
            .iter()
            .filter(|pause| pause.node == node && pause.end <= now);
        over.map(|pause| pause.end).fold(at, Duration::max)
    }

    /// When a node that is paused at this moment goes on. Pauses may overlap: it is the end of the last of them for all
    /// that comes meanwhile, so that nothing overtakes what came before it.
    pub fn goes_on(&self, node: Node, at: Duration) -> Option<Duration> {
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

impl Order {
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
                cores: random.random_range(0..=cores),
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
