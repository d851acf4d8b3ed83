//! Tests of every collective against a plain computation: blocking, non-blocking, and in place; with elements of each
//! type and some operator, and with functions, whose order matters.

mod kinds;

use hotlease_comm::{Blocks, Communicator, InPlace, Rank};
use kinds::{AllOperations, FUNCTIONS, KINDS, Kind};

fn given<K: Kind>(rank: Rank, count: usize) -> Vec<K> {
    (0..count).map(|index| K::of(rank, index)).collect()
}

/// Expected sum over the members before `end`, in their order.
fn reduced<K: Kind>(end: Rank, count: usize) -> Vec<K> {
    let of_index = |index| {
        (0..end)
            .map(|rank| K::of(rank, index))
            .reduce(K::then)
            .expect("a member")
    };
    (0..count).map(of_index).collect()
}

/// Content of memory that was not written.
fn blank<K: Kind>(count: usize) -> Vec<K> {
    vec![K::of(99, 99); count]
}

/// Blocks of different lengths, some empty, in a buffer with gaps, from the last rank to the first.
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

/// Arguments that all ways to call a collective share.
#[derive(Clone, Copy)]
struct TypedCase<'a> {
    all: &'a Communicator,
    size: Rank,
    me: Rank,
    count: usize,
    root: Rank,
}

impl TypedCase<'_> {
    fn is_root(&self) -> bool {
        self.me == self.root
    }

    fn at_root<K: Kind>(&self, elements: &[K]) -> Vec<K> {
        if self.is_root() { elements.to_vec() } else { Vec::new() }
    }

    #[track_caller]
    fn same<K: Kind>(&self, what: &str, is: &[K], should_be: &[K]) {
        let Self { size, me, count, .. } = self;
        let kind = std::any::type_name::<K>();
        assert!(is == should_be, "{what}: rank {me} of {size}, {count} of {kind}");
    }

    /// Collectives with a root in which all members use all elements.
    fn rooted<K: Kind>(&self) {
        let TypedCase {
            all,
            size,
            me,
            count,
            root,
        } = *self;
        let mine = given::<K>(me, count);
        let mut buffer = if self.is_root() { mine.clone() } else { blank(count) };
        all.broadcast(&mut buffer, root).expect("all are well");
        self.same("broadcast", &buffer, &given(root, count));
        let begun = all.ibroadcast(if self.is_root() { mine.clone() } else { blank(count) }, root);
        self.same(
            "ibroadcast",
            &begun.expect("begun").wait().expect("all are well"),
            &given(root, count),
        );

        let total = self.at_root(&reduced::<K>(size, count));
        let mut result = self.at_root(&blank(count));
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
            all.reduce(&mine, &mut [], &K::operator(), root).expect("all are well");
        }
        self.same("what was given", &mine, &given(me, count));
    }

    /// Collectives with a root in which each member has a share.
    fn rooted_shares<K: Kind>(&self) {
        let TypedCase {
            all,
            size,
            me,
            count,
            root,
        } = *self;
        let mine = given::<K>(me, count);
        let every: Vec<K> = (0..size).flat_map(|rank| given(rank, count)).collect();
        let mut gathered = self.at_root(&blank(every.len()));
        all.gather(&mine, &mut gathered, root).expect("all are well");
        self.same("gather", &gathered, &self.at_root(&every));
        let begun = all.igather(mine.clone(), root).expect("begun");
        self.same("igather", &begun.wait().expect("all are well"), &self.at_root(&every));
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
        all.scatter(&self.at_root(&every), &mut part, root)
            .expect("all are well");
        self.same("scatter", &part, &mine);
        let begun = all.iscatter(self.at_root(&every), count, root).expect("begun");
        self.same("iscatter", &begun.wait().expect("all are well"), &mine);
        let mut part = if self.is_root() { Vec::new() } else { blank(count) };
        all.scatter(&self.at_root(&every), &mut part, root)
            .expect("all are well");
        self.same("scatter in place", &part, if self.is_root() { &[] } else { &mine });
        self.same("what was given", &mine, &given(me, count));
    }

    fn rooted_uneven<K: Kind>(&self) {
        let TypedCase {
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
        // The content between blocks is undefined.
        let in_places = |what: &str, gathered: &[K]| {
            assert_eq!(gathered.len(), extent);
            for rank in (0..size as usize).filter(|rank| counts[*rank] > 0) {
                let place = displacements[rank]..displacements[rank] + counts[rank];
                self.same(what, &gathered[place.clone()], &every[place]);
            }
        };
        let mut gathered = self.at_root(&blank(extent));
        all.gatherv(&mine, &mut gathered, blocks, root).expect("all are well");
        self.same("gatherv", &gathered, if self.is_root() { &every } else { &[] });
        let begun = all.igatherv(mine.clone(), blocks, root).expect("begun");
        let gathered = begun.wait().expect("all are well");
        if self.is_root() {
            in_places("igatherv", &gathered);
        } else {
            assert!(gathered.is_empty());
        }
        let mut part = blank(mine.len());
        all.scatterv(&every, blocks, &mut part, root).expect("all are well");
        self.same("scatterv", &part, &mine);
        let begun = all.iscatterv(every.clone(), blocks, mine.len(), root).expect("begun");
        self.same("iscatterv", &begun.wait().expect("all are well"), &mine);

        let mut gathered = blank(extent);
        all.allgatherv(&mine, &mut gathered, blocks).expect("all are well");
        self.same("allgatherv", &gathered, &every);
        let begun = all.iallgatherv(mine, blocks).expect("begun");
        in_places("iallgatherv", &begun.wait().expect("all are well"));

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
        let begun = all.ireduce_scatter(given, &counts, &K::operator()).expect("begun");
        self.same("ireduce_scatter", &begun.wait().expect("all are well"), own);
    }

    fn of_all<K: Kind>(&self) {
        let TypedCase {
            all, size, me, count, ..
        } = *self;
        let mine = given::<K>(me, count);
        all.barrier().expect("all are well");
        all.ibarrier().expect("begun").wait().expect("all are well");

        let total = reduced::<K>(size, count);
        let mut result = blank(count);
        all.allreduce(&mine, &mut result, &K::operator()).expect("all are well");
        self.same("allreduce", &result, &total);
        let mut result = mine.clone();
        all.allreduce(InPlace, &mut result, &K::operator())
            .expect("all are well");
        self.same("allreduce in place", &result, &total);
        let begun = all.iallreduce(mine.clone(), &K::operator()).expect("begun");
        self.same("iallreduce", &begun.wait().expect("all are well"), &total);

        let so_far = reduced::<K>(me + 1, count);
        let mut result = blank(count);
        all.scan(&mine, &mut result, &K::operator()).expect("all are well");
        self.same("scan", &result, &so_far);
        let mut result = mine.clone();
        all.scan(InPlace, &mut result, &K::operator()).expect("all are well");
        self.same("scan in place", &result, &so_far);
        let begun = all.iscan(mine.clone(), &K::operator()).expect("begun");
        self.same("iscan", &begun.wait().expect("all are well"), &so_far);
        let before = |untouched: Vec<K>| if me == 0 { untouched } else { reduced(me, count) };
        let mut result = blank(count);
        all.exscan(&mine, &mut result, &K::operator()).expect("all are well");
        self.same("exscan", &result, &before(blank(count)));
        let begun = all.iexscan(mine.clone(), &K::operator()).expect("begun");
        self.same("iexscan", &begun.wait().expect("all are well"), &before(mine.clone()));
        self.same("what was given", &mine, &given(me, count));
    }

    fn shares_of_all<K: Kind>(&self) {
        let TypedCase {
            all, size, me, count, ..
        } = *self;
        let mine = given::<K>(me, count);
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

        // The part that each member sends to this member.
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

    /// Rank `i` sends `i + j` elements to rank `j`, modulo 4, scaled with the count.
    fn exchange<K: Kind>(&self) {
        let TypedCase {
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
        self.of_all::<K>();
        let mut shared = *self;
        if self.count * size_of::<K>() >= MANY {
            shared.count = self.count.div_ceil(self.size as usize);
        }
        shared.rooted_shares::<K>();
        shared.rooted_uneven::<K>();
        shared.shares_of_all::<K>();
        shared.exchange::<K>();
    }
}

/// Bytes that a member contributes: none, one element, an odd length, one byte more than is sent without asking, many,
/// and over a mebibyte, which is then shared among the ranks.
pub const LENGTHS: [usize; 6] = [0, 1, 57, 16_385, 40_000, 1_200_001];
/// From this many bytes on, the elements are shared among the ranks.
const MANY: usize = 1 << 20;

/// Runs all operations for each of these lengths: with another type each time, and with functions.
pub fn all_operations(all: &Communicator, lengths: &[usize]) {
    let (size, me) = (all.size(), all.rank());
    for (number, &bytes) in lengths.iter().enumerate() {
        let of = |(element_bytes, everything): (usize, AllOperations)| {
            everything(&TypedCase {
                all,
                size,
                me,
                count: bytes.div_ceil(element_bytes),
                root: (number as Rank + size / 2) % size,
            });
        };
        of(KINDS[(number + size as usize) % KINDS.len()]);
        of(FUNCTIONS);
    }
}
