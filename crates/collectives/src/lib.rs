//! Level 1 of hotlease: planning of collectives: what each rank does, by which algorithm, and the time and price of
//! this. Pure: no I/O, no threads, no clocks.
//!
//! * A **[`CollectiveCall`]** is a collective as one rank calls it. A **[`Recipe`]** is an algorithm for it. A
//!   **[`Schedule`]** contains the steps of one rank in one collective: in each round, transfers that run at the same
//!   time, and then copies and reductions. A schedule is pure data, so every collective is non-blocking by itself, and
//!   can be tested in memory for any number of ranks. [`Recipe::build`] makes a schedule, by one of several
//!   [`Algorithm`]s for each [`Operation`]. [`Areas`] runs the local steps of a schedule, with an [`Operator`] for a
//!   [`Datatype`].
//! * A **[`Table`]** chooses the algorithm for a call, and explains the choice.
//! * **[`cost`]** simulates thousands of ranks from the latency and bandwidth of their links; **[`model`]** adds the
//!   price, and chooses the link.
//!
//! `hotlease_comm` runs schedules between members, and re-exports everything here.
//!
//! Steps of rank 1 of 4 in an allreduce: each rank contributes 1000 numbers of 8 bytes, and every rank gets the 1000
//! sums.
//!
//! ```
//! use hotlease_collectives::{Collective, CollectiveCall, Datatype, LinkKind, Operator, Question, Step, Table};
//!
//! let sum = Collective::Allreduce { count: 1000, operator: &Operator::Sum };
//! let call = CollectiveCall::new(sum, Datatype::F64, 1, 4);
//! let recipe = Table::built_in().choose(&Question::new(&call, LinkKind::Tcp));
//! let schedule = recipe.build(&call)?;
//! for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
//!     match transfer {
//!         Step::Send { to, from } => println!("{from} to rank {to}"),
//!         Step::Receive { from, into } => println!("{into} from rank {from}"),
//!         other => unreachable!("{other:?} is for stores"),
//!     }
//! }
//! # Ok::<(), hotlease_collectives::Error>(())
//! ```

#![forbid(unsafe_code)]

mod algorithm;
mod areas;
mod choice;
mod collective;
pub mod cost;
mod datatype;
mod element;
mod error;
pub mod model;
mod names;
mod operation;
mod operator;
mod schedule;

pub use algorithm::{Blocks, Recipe, SchedulePart};
pub use areas::Areas;
pub use choice::{Explanation, LinkKind, Measurement, Question, Rule, Table};
pub use collective::{Collective, CollectiveCall};
pub use datatype::Datatype;
pub use element::{Element, Plain};
pub use error::Error;
pub use operation::{Algorithm, Operation};
pub use operator::{Operands, Operator, Reduction, UserFunction};
pub use schedule::{Area, AreaSpan, Rank, Round, Schedule, Step};
