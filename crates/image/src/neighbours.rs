//! Images that come from other nodes, and go on to others while they come.
//!
//! When hundreds of nodes need the same image at once, its file in the store would be read hundreds of times. Instead whoever has it, or
//! a part of it, hands that on. What a neighbour says is worth no more than what anybody says: it is hashed like the rest.

use crate::ImageId;
use crate::cache::Cache;
use crate::error::{ImageError, io};
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a reader waits for more of an image that is being fetched.
const STALL_LIMIT: Duration = Duration::from_secs(10);

/// Other nodes that may have an image, or will have it soon.
pub trait Neighbours: Debug + Send + Sync {
    /// Those to be asked for it, one after the other: the next one only when not all has come of those before, for what is behind the
    /// first `at` bytes. Called, and stepped, on a thread that may block.
    fn of<'a>(&'a self, id: &ImageId, at: &'a Cell<u64>) -> Box<dyn Iterator<Item = Offer> + 'a>;

    /// An image has come, all of it and right, from one of those or a store. For whoever wants to know how images spread.
    fn arrived(&self, _: &ImageId, _: &Arrived<'_>) {}
}

/// How an image has come.
#[derive(Debug, Clone, Copy)]
pub struct Arrived<'a> {
    /// From whom, or from which file.
    pub from: &'a Path,
    /// How long it is.
    pub bytes: u64,
    /// Since it was asked for, what was tried before included.
    pub took: Duration,
}

/// An image that a neighbour sends.
pub struct Offer {
    /// Who, in words.
    pub from: String,
    /// How long it says that the whole image is.
    pub bytes: u64,
    /// What it sends of the rest.
    pub content: Box<dyn Read + Send>,
}

/// The images that this process is fetching now.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<HashMap<ImageId, Arc<Arrival>>>);

/// How much of an image is here.
#[derive(Debug, Default)]
struct Arrival {
    extent: Mutex<Extent>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Extent {
    /// Where it is written to, and how long it is to be; none: nothing of it has come.
    file: Option<(Arc<File>, u64)>,
    written: u64,
    has_failed: bool,
}

impl Arrival {
    fn extent(&self) -> MutexGuard<'_, Extent> {
        self.extent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Extent)) {
        change(&mut self.extent());
        self.news.notify_all();
    }

    /// Waits until it is so, or has failed, or nothing has come for too long.
    fn wait(&self, is_so: impl Fn(&Extent) -> bool) -> io::Result<MutexGuard<'_, Extent>> {
        let mut extent = self.extent();
        let (mut written, mut since) = (extent.written, Instant::now());
        loop {
            if extent.has_failed {
                return Err(io::Error::other("fetching it to this node failed"));
            }
            if is_so(&extent) {
                return Ok(extent);
            }
            if extent.written > written {
                (written, since) = (extent.written, Instant::now());
            }
            let left = STALL_LIMIT.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let waited = self.news.wait_timeout(extent, left);
            extent = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Arrivals {
    fn table(&self) -> MutexGuard<'_, HashMap<ImageId, Arc<Arrival>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, until this is dropped, others may read what has come of it.
    pub(crate) fn announce(&self, id: &ImageId) -> Announced<'_> {
        let arrival = Arc::<Arrival>::default();
        self.table().insert(*id, Arc::clone(&arrival));
        Announced {
            arrivals: self,
            id: *id,
            arrival,
            is_whole: false,
        }
    }
}

/// Tells readers how far an image is.
pub(crate) struct Announced<'a> {
    arrivals: &'a Arrivals,
    id: ImageId,
    arrival: Arc<Arrival>,
    is_whole: bool,
}

impl Announced<'_> {
    /// It begins to come, into this file. What an attempt before has brought is void, also for who has read of it.
    pub(crate) fn begin(&mut self, file: Arc<File>, bytes: u64) {
        if self.arrival.extent().file.is_some() {
            self.arrival.change(|extent| extent.has_failed = true);
            self.arrival = Arc::default();
            let mut table = self.arrivals.table();
            table.insert(self.id, Arc::clone(&self.arrival));
        }
        self.arrival.change(|extent| extent.file = Some((file, bytes)));
    }

    pub(crate) fn written(&self, bytes: u64) {
        self.arrival.change(|extent| extent.written += bytes);
    }

    /// It is whole, and where others find it.
    pub(crate) fn whole(&mut self) {
        self.is_whole = true;
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.arrivals.table().remove(&self.id);
        // Of one that is whole readers have all that they wait for.
        if !self.is_whole {
            self.arrival.change(|extent| extent.has_failed = true);
        }
    }
}

/// Reads an image of a cache, from its beginning; waits where it has not come yet.
#[derive(Debug)]
pub struct Reader {
    file: Arc<File>,
    bytes: u64,
    at: u64,
    /// None: it is whole.
    arrival: Option<Arc<Arrival>>,
}

impl Reader {
    /// How long the image is.
    pub fn length(&self) -> u64 {
        self.bytes
    }

    /// Reads on from here; none: it is not so long.
    pub fn behind(self, at: u64) -> Option<Self> {
        (at <= self.bytes).then_some(Self { at, ..self })
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let here = match &self.arrival {
            _ if self.at == self.bytes => return Ok(0),
            None => self.bytes,
            Some(arrival) => arrival.wait(|extent| extent.written > self.at)?.written,
        };
        let most = usize::try_from(here - self.at)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        match self.file.read_at(&mut buffer[..most], self.at)? {
            0 if most > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.at += read as u64;
                Ok(read)
            }
        }
    }
}

impl Cache {
    /// Reads an image that is here, or that this process is fetching; none: it is neither. Blocks until its length is known. Nothing is
    /// checked: who reads it hashes it.
    ///
    /// # Errors
    /// If it cannot be read, or fetching it fails before its length is known.
    pub fn read(&self, id: &ImageId) -> Result<Option<Reader>, ImageError> {
        let arrival = self.arrivals.table().get(id).cloned();
        if let Some(arrival) = arrival {
            let image = self.image(id);
            let extent = arrival.wait(|extent| extent.file.is_some());
            let file = extent.map_err(io("wait for", &image))?.file.clone();
            return Ok(file.map(|(file, bytes)| Reader {
                file,
                bytes,
                at: 0,
                arrival: Some(Arc::clone(&arrival)),
            }));
        }
        // One that arrived between the two looks is here.
        let image = self.image(id);
        let file = match File::open(&image) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io("open", &image)(error)),
        };
        let bytes = file.metadata().map_err(io("look at", &image))?.len();
        Ok(Some(Reader {
            file: Arc::new(file),
            bytes,
            at: 0,
            arrival: None,
        }))
    }
}
