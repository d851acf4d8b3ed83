//! Every collective over TCP on loopback, of one to nine members, beside what a plain program computes: waiting, begun, and in place;
//! of numbers that are added up, and of functions, whose order matters.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod group;

use bytemuck::{Pod, Zeroable};
use group::each;
use hotlease_comm::{
    Algorithm, Ask, Blocks, Collective, Communicator, Datatype, InPlace, Operator, Plain, Rank, Table,
};
use std::fmt::Debug;
use std::sync::Arc;

/// Elements of 8 bytes: none, one, few, one more than is sent without asking, many.
const COUNTS: [usize; 5] = [0, 1, 7, 2049, 5000];

trait Kind: Plain + Debug + PartialEq {
    fn of(rank: Rank, index: usize) -> Self;
    fn operator() -> Operator;
    fn then(self, next: Self) -> Self;
}

impl Kind for u64 {
    fn of(rank: Rank, index: usize) -> Self {
        index as u64 + 1_000_000 * u64::from(rank)
    }

    fn operator() -> Operator {
        Operator::Sum
    }

    fn then(self, next: Self) -> Self {
        self + next
    }
}

/// `x -> scale * x + offset`, of numbers of 32 bits. One after the other is another one, and in another order still another.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Function {
    scale: u32,
    offset: u32,
}

impl Plain for Function {
    const DATATYPE: Datatype = Datatype::record::<Self>();
}

impl Kind for Function {
    fn of(rank: Rank, index: usize) -> Self {
        Self {
            scale: 2 * (rank + index as u32) + 3,
            offset: 7 * rank + 1,
        }
    }

    fn operator() -> Operator {
        Operator::User {
            function: Arc::new(|first, second, _| {
                let pairs = first.as_chunks::<8>().0.iter().zip(second.as_chunks_mut::<8>().0);
                for (first, second) in pairs {
                    let [first, next] =
                        [first, &*second].map(|one| bytemuck::pod_read_unaligned::<Self>(one));
                    second.copy_from_slice(bytemuck::bytes_of(&first.then(next)));
                }
            }),
            commutes: false,
        }
    }

    fn then(self, next: Self) -> Self {
        Self {
            scale: self.scale.wrapping_mul(next.scale),
            offset: self.offset.wrapping_mul(next.scale).wrapping_add(next.offset),
        }
    }
}

fn given<K: Kind>(rank: Rank, count: usize) -> Vec<K> {
    (0..count).map(|index| K::of(rank, index)).collect()
}

/// Of the members before `end`, in their order.
fn reduced<K: Kind>(end: Rank, count: usize) -> Vec<K> {
    let of_index = |index| {
        (0..end)
            .map(|rank| K::of(rank, index))
            .reduce(K::then)
            .expect("a member")
    };
    (0..count).map(of_index).collect()
}

/// What is in memory that nobody has written.
fn blank<K: Kind>(count: usize) -> Vec<K> {
    vec![K::of(99, 99); count]
}

/// Of different lengths, some of none, in a buffer with gaps, from the last rank to the first.
fn uneven(size: Rank, count: usize) -> (Vec<usize>, Vec<usize>) {
    let counts: Vec<usize> = (0..size as usize)
        .map(|rank| count / (rank + 1) * usize::from(rank % 3 != 2))
        .collect();
    let mut next = 1;
    let mut places = vec![0; counts.len()];
    for rank in (0..counts.len()).rev() {
        places[rank] = next;
        next += counts[rank] + 2;
    }
    (counts, places)
}

/// What is the same in all ways to call one.
struct Scene<'a> {
    all: &'a Communicator,
    size: Rank,
    me: Rank,
    count: usize,
    root: Rank,
}

impl Scene<'_> {
    fn is_root(&self) -> bool {
        self.me == self.root
    }

    #[track_caller]
    fn same<K: Kind>(&self, what: &str, is: &[K], should_be: &[K]) {
        let Self { size, me, count, .. } = self;
        assert!(is == should_be, "{what}: rank {me} of {size}, {count} elements");
    }

    fn rooted<K: Kind>(&self) {
        let Scene {
            all,
            size,
            me,
            count,
            root,
        } = *self;
        let mine = given::<K>(me, count);
        let mut buffer = if self.is_root() {
            mine.clone()
        } else {
            blank(count)
        };
        all.broadcast(&mut buffer, root).expect("all are well");
        self.same("broadcast", &buffer, &given(root, count));
        let begun = all.ibroadcast(
            if self.is_root() {
                mine.clone()
            } else {
                blank(count)
            },
            root,
        );
        self.same(
            "ibroadcast",
            &begun.expect("begun").wait().expect("all are well"),
            &given(root, count),
        );

        let every: Vec<K> = (0..size).flat_map(|rank| given(rank, count)).collect();
        let at_root = |every: &[K]| {
            if self.is_root() {
                every.to_vec()
            } else {
                Vec::new()
            }
        };
        let mut gathered = at_root(&blank(every.len()));
        all.gather(&mine, &mut gathered, root).expect("all are well");
        self.same("gather", &gathered, &at_root(&every));
        let begun = all.igather(mine.clone(), root).expect("begun");
        self.same("igather", &begun.wait().expect("all are well"), &at_root(&every));
        if self.is_root() {
            let own = me as usize * count;
            let mut gathered = blank(every.len());
            gathered[own..own + count].copy_from_slice(&mine);
            all.gather(InPlace, &mut gathered, root).expect("all are well");
            self.same("gather in place", &gathered, &every);
        } else {
            all.gather(&mine, &mut [], root).expect("all are well");
        }

        let mut part = blank(count);
        all.scatter(&at_root(&every), &mut part, root)
            .expect("all are well");
        self.same("scatter", &part, &mine);
        let begun = all.iscatter(at_root(&every), count, root).expect("begun");
        self.same("iscatter", &begun.wait().expect("all are well"), &mine);
        let mut part = if self.is_root() { Vec::new() } else { blank(count) };
        all.scatter(&at_root(&every), &mut part, root)
            .expect("all are well");
        self.same(
            "scatter in place",
            &part,
            if self.is_root() { &[] } else { &mine },
        );

        let total = at_root(&reduced::<K>(size, count));
        let mut result = at_root(&blank(count));
        all.reduce(&mine, &mut result, &K::operator(), root)
            .expect("all are well");
        self.same("reduce", &result, &total);
        let begun = all.ireduce(mine.clone(), &K::operator(), root).expect("begun");
        self.same("ireduce", &begun.wait().expect("all are well"), &total);
        if self.is_root() {
            let mut result = mine.clone();
            all.reduce(InPlace, &mut result, &K::operator(), root)
                .expect("all are well");
            self.same("reduce in place", &result, &total);
        } else {
            all.reduce(&mine, &mut [], &K::operator(), root)
                .expect("all are well");
        }
        self.same("what was given", &mine, &given(me, count));
    }

    fn rooted_uneven<K: Kind>(&self) {
        let Scene {
            all, size, me, root, ..
        } = *self;
        let (counts, displacements) = uneven(size, self.count);
        let blocks = Blocks::Each {
            counts: &counts,
            displacements: &displacements,
        };
        let (mine, extent) = (given::<K>(me, counts[me as usize]), blocks.extent(size as usize));
        let mut every = blank(extent);
        for rank in 0..size as usize {
            let place = displacements[rank]..displacements[rank] + counts[rank];
            if !place.is_empty() {
                every[place].copy_from_slice(&given(rank as Rank, counts[rank]));
            }
        }
        let mut gathered = if self.is_root() { blank(extent) } else { Vec::new() };
        all.gatherv(&mine, &mut gathered, blocks, root)
            .expect("all are well");
        self.same("gatherv", &gathered, if self.is_root() { &every } else { &[] });
        let begun = all.igatherv(mine.clone(), blocks, root).expect("begun");
        let gathered = begun.wait().expect("all are well");
        assert_eq!(gathered.len(), if self.is_root() { extent } else { 0 });
        if self.is_root() {
            for rank in (0..size as usize).filter(|rank| counts[*rank] > 0) {
                let place = displacements[rank]..displacements[rank] + counts[rank];
                self.same("igatherv", &gathered[place.clone()], &every[place]);
            }
        }
        let mut part = blank(mine.len());
        all.scatterv(&every, blocks, &mut part, root)
            .expect("all are well");
        self.same("scatterv", &part, &mine);
        let begun = all
            .iscatterv(every.clone(), blocks, mine.len(), root)
            .expect("begun");
        self.same("iscatterv", &begun.wait().expect("all are well"), &mine);

        let mut gathered = blank(extent);
        all.allgatherv(&mine, &mut gathered, blocks)
            .expect("all are well");
        self.same("allgatherv", &gathered, &every);
        let begun = all.iallgatherv(mine, blocks).expect("begun");
        assert_eq!(begun.wait().expect("all are well").len(), extent);

        let given = given::<K>(me, counts.iter().sum());
        let total = reduced::<K>(size, given.len());
        let first: usize = counts[..me as usize].iter().sum();
        let own = &total[first..first + counts[me as usize]];
        let mut part = blank(own.len());
        all.reduce_scatter(&given, &mut part, &counts, &K::operator())
            .expect("all are well");
        self.same("reduce_scatter", &part, own);
        let mut part = given.clone();
        all.reduce_scatter(InPlace, &mut part, &counts, &K::operator())
            .expect("all are well");
        self.same("reduce_scatter in place", &part[..own.len()], own);
        let begun = all
            .ireduce_scatter(given, &counts, &K::operator())
            .expect("begun");
        self.same("ireduce_scatter", &begun.wait().expect("all are well"), own);
    }

    fn of_all<K: Kind>(&self) {
        let Scene {
            all, size, me, count, ..
        } = *self;
        let mine = given::<K>(me, count);
        all.barrier().expect("all are well");
        all.ibarrier().expect("begun").wait().expect("all are well");

        let every: Vec<K> = (0..size).flat_map(|rank| given(rank, count)).collect();
        let mut gathered = blank(every.len());
        all.allgather(&mine, &mut gathered).expect("all are well");
        self.same("allgather", &gathered, &every);
        let begun = all.iallgather(mine.clone()).expect("begun");
        self.same("iallgather", &begun.wait().expect("all are well"), &every);
        let mut gathered = blank(every.len());
        gathered[me as usize * count..][..count].copy_from_slice(&mine);
        all.allgather(InPlace, &mut gathered).expect("all are well");
        self.same("allgather in place", &gathered, &every);

        let total = reduced::<K>(size, count);
        let mut result = blank(count);
        all.allreduce(&mine, &mut result, &K::operator())
            .expect("all are well");
        self.same("allreduce", &result, &total);
        let mut result = mine.clone();
        all.allreduce(InPlace, &mut result, &K::operator())
            .expect("all are well");
        self.same("allreduce in place", &result, &total);
        let begun = all.iallreduce(mine.clone(), &K::operator()).expect("begun");
        self.same("iallreduce", &begun.wait().expect("all are well"), &total);

        let shares = given::<K>(me, count * size as usize);
        let total = reduced::<K>(size, shares.len());
        let own = &total[me as usize * count..][..count];
        let mut part = blank(count);
        all.reduce_scatter_block(&shares, &mut part, &K::operator())
            .expect("all are well");
        self.same("reduce_scatter_block", &part, own);
        let begun = all
            .ireduce_scatter_block(shares.clone(), &K::operator())
            .expect("begun");
        self.same("ireduce_scatter_block", &begun.wait().expect("all are well"), own);

        let so_far = reduced::<K>(me + 1, count);
        let mut result = blank(count);
        all.scan(&mine, &mut result, &K::operator())
            .expect("all are well");
        self.same("scan", &result, &so_far);
        let mut result = mine.clone();
        all.scan(InPlace, &mut result, &K::operator())
            .expect("all are well");
        self.same("scan in place", &result, &so_far);
        let begun = all.iscan(mine.clone(), &K::operator()).expect("begun");
        self.same("iscan", &begun.wait().expect("all are well"), &so_far);
        let before = |untouched: Vec<K>| if me == 0 { untouched } else { reduced(me, count) };
        let mut result = blank(count);
        all.exscan(&mine, &mut result, &K::operator())
            .expect("all are well");
        self.same("exscan", &result, &before(blank(count)));
        let begun = all.iexscan(mine.clone(), &K::operator()).expect("begun");
        self.same(
            "iexscan",
            &begun.wait().expect("all are well"),
            &before(mine.clone()),
        );

        // Everybody's part for this member.
        let part = |from| given::<K>(from, count * size as usize)[me as usize * count..][..count].to_vec();
        let parts: Vec<K> = (0..size).flat_map(part).collect();
        let mut result = blank(parts.len());
        all.alltoall(&shares, &mut result).expect("all are well");
        self.same("alltoall", &result, &parts);
        let mut result = shares.clone();
        all.alltoall(InPlace, &mut result).expect("all are well");
        self.same("alltoall in place", &result, &parts);
        let begun = all.ialltoall(shares.clone()).expect("begun");
        self.same("ialltoall", &begun.wait().expect("all are well"), &parts);
        self.same("what was given", &shares, &given(me, shares.len()));
    }

    /// Rank `i` sends `i + j` elements to rank `j`, modulo a few, and more if there are many.
    fn exchange<K: Kind>(&self) {
        let Scene {
            all, size, me, count, ..
        } = *self;
        let length = |from: Rank, to: Rank| (from + to) as usize % 4 * count / 3;
        let lengths = |of: &dyn Fn(Rank) -> usize| -> (Vec<usize>, Vec<usize>) {
            let counts: Vec<usize> = (0..size).map(of).collect();
            let places = (0..counts.len()).map(|rank| counts[..rank].iter().sum());
            (counts.clone(), places.collect())
        };
        let (sent_counts, sent_places) = lengths(&|to| length(me, to));
        let (got_counts, got_places) = lengths(&|from| length(from, me));
        let sent = Blocks::Each {
            counts: &sent_counts,
            displacements: &sent_places,
        };
        let received = Blocks::Each {
            counts: &got_counts,
            displacements: &got_places,
        };
        let shares = given::<K>(me, sent_counts.iter().sum());
        let part = |from: Rank| {
            let before: usize = (0..me).map(|to| length(from, to)).sum();
            let total: usize = (0..size).map(|to| length(from, to)).sum();
            given::<K>(from, total)[before..before + length(from, me)].to_vec()
        };
        let parts: Vec<K> = (0..size).flat_map(part).collect();
        let mut result = blank(parts.len());
        all.alltoallv(&shares, sent, &mut result, received)
            .expect("all are well");
        self.same("alltoallv", &result, &parts);
        let begun = all.ialltoallv(shares, sent, received).expect("begun");
        self.same("ialltoallv", &begun.wait().expect("all are well"), &parts);
    }

    fn everything<K: Kind>(&self) {
        self.rooted::<K>();
        self.rooted_uneven::<K>();
        self.of_all::<K>();
        self.exchange::<K>();
    }
}

fn all_operations(all: &Communicator) {
    for count in COUNTS {
        let (size, me) = (all.size(), all.rank());
        let scene = Scene {
            all,
            size,
            me,
            count,
            root: count as Rank % size,
        };
        scene.everything::<u64>();
        scene.everything::<Function>();
    }
}

#[test]
fn every_collective_gives_what_a_plain_program_computes() {
    for size in 1..=9 {
        each(size, |_| (), |all| all_operations(&all));
    }
}

#[test]
fn so_it_does_in_checked_mode_and_in_a_part_of_a_communicator() {
    each(
        5,
        |options| options.is_checked = true,
        |all| {
            // Ranks the other way round, without rank 2.
            let color = (all.rank() != 2).then_some(7);
            let part = all.split(color, -i64::from(all.rank())).expect("all are well");
            assert_eq!(part.is_none(), all.rank() == 2);
            if let Some(part) = part {
                let expected = [3, 2, 9, 1, 0][all.rank() as usize];
                assert_eq!((part.rank(), part.size()), (expected, 4));
                all_operations(&part);
            }
        },
    );
}

#[test]
fn truth_values_are_elements_and_come_back_as_such() {
    each(
        3,
        |_| (),
        |all| {
            let mine = [all.rank() == 1, true, all.rank() < 2];
            let mut any = [false; 3];
            all.allreduce(&mine, &mut any, &Operator::LogicalXor)
                .expect("all are well");
            assert_eq!(any, [true, true, false]);
            let begun = all
                .iallreduce(mine.to_vec(), &Operator::LogicalAnd)
                .expect("begun");
            assert_eq!(begun.wait().expect("all are well"), [false, true, false]);
        },
    );
}

#[test]
fn a_table_of_the_users_decides_on_the_algorithm() {
    let table = "version = 1\n[[rule]]\noperation = \"allreduce\"\nalgorithm = \"reduce-broadcast\"\n";
    let table = Arc::new(Table::parse(table).expect("a table"));
    each(
        4,
        |options| options.table = Some(Arc::clone(&table)),
        |all| {
            let ask = Ask::new(Collective::Allreduce { count: 3 }, Datatype::U64).by(&Operator::Sum);
            let why = all.explain(&ask).expect("a call that makes sense");
            assert_eq!(why.choice.recipe.algorithm, Algorithm::ReduceBroadcast, "{why}");
            let mut total = [0u64; 3];
            all.allreduce(&[1, 2, u64::from(all.rank())], &mut total, &Operator::Sum)
                .expect("all are well");
            assert_eq!(total, [4, 8, 6]);
        },
    );
}
