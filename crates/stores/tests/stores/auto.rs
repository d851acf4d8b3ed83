//! Tests of the model's choice between a store and direct connections.

use crate::group::{self, PATIENCE};
use crate::redis::Redis;
use hotlease_comm::model::{LinkPrices, MessageTimes};
use hotlease_comm::{Communicator, Error, LinkChoice, Operator};
use std::sync::Arc;

/// Prices in which a message takes 1.5 ms. Two ranks exchange data in that time, but more ranks need several
/// consecutive messages. A write and a read of Redis together take 2 ms for any number of ranks.
fn prices() -> LinkPrices {
    let mut prices = LinkPrices::built_in().clone();
    let tcp = prices.link.tcp.take().expect("TCP");
    prices.link.tcp = Some(MessageTimes {
        latency_us: 1500.0,
        ..tcp
    });
    let redis = prices.link.redis.as_mut().expect("Redis");
    (redis.times.write_ms, redis.times.read_ms) = (1.0, 1.0);
    prices
}

#[test]
fn members_choose_anew_when_they_become_fewer_and_more() {
    let Some(redis) = Redis::start() else { return };
    let server = group::rendezvous();
    let mut options = crate::options(&server, "auto", 3);
    let store = redis.link();
    options.link = format!("auto:direct,{store},size=8,by=time").parse().expect("a link");
    options.prices = Some(Arc::new(prices()));
    let sum = |all: &Communicator| -> Result<u32, Error> {
        let mut sum = [0];
        all.allreduce(&[1], &mut sum, &Operator::Sum)?;
        Ok(sum[0])
    };
    let member = |rank| {
        let mut options = options.clone();
        options.rank = Some(rank);
        let all = Communicator::join(&options).expect("all come");
        assert_eq!((all.link(), sum(&all)), (&store, Ok(3)));
        if rank == 2 {
            return all.abort();
        }
        while sum(&all).is_ok() {}
        let two = all.shrink().expect("two are left");
        assert_eq!((two.link(), sum(&two)), (&LinkChoice::Direct, Ok(2)));
        let three = two.grow(1).expect("one comes");
        assert_eq!((three.link(), sum(&three)), (&store, Ok(3)));
    };
    let newcomer = || {
        let mut options = options.clone();
        options.is_newcomer = true;
        options.join_timeout = PATIENCE;
        let three = Communicator::join(&options).expect("it is let in");
        assert_eq!((three.link(), three.rank(), sum(&three)), (&store, 2, Ok(3)));
    };
    std::thread::scope(|scope| {
        let member = &member;
        let members = [0, 1, 2].map(|rank| scope.spawn(move || member(rank)));
        scope.spawn(newcomer);
        for member in members {
            member.join().expect("no panic");
        }
    });
    assert_eq!(redis.keys(), 0, "nothing is left in the store");
}
