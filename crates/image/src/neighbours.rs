//! Images that come from other nodes, and are passed on to further nodes while they arrive.
//!
//! When hundreds of nodes need the same image at once, its file in the store would be read hundreds of times. Instead
//! each node that has the image, or a part of it, passes it on. Bytes of a neighbour are not trusted: they are hashed
//! like bytes of any other source.

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

/// Limit of a reader's wait for more bytes of an image that is being fetched.
const STALL_LIMIT: Duration = Duration::from_secs(10);

/// Other nodes that may have an image, or will have it soon.
pub trait Neighbours: Debug + Send + Sync {
    /// Offers of nodes that have the image, one after the other. The caller advances the iterator only if the previous
    /// nodes have not sent the whole image. Each offer contains the bytes after the first `at` bytes, with the value
    /// that `at` has then. The method is called, and the iterator advanced, on a thread that may block.
    fn offers<'a>(&'a self, id: &ImageId, at: &'a Cell<u64>) -> Box<dyn Iterator<Item = ImageOffer> + 'a>;

    /// Called when an image has arrived, complete and correct, from a neighbour or a store; for statistics of how
    /// images spread.
    fn arrived(&self, _: &ImageId, _: &ArrivalInfo<'_>) {}
}

/// Facts about the arrival of an image.
#[derive(Debug, Clone, Copy)]
pub struct ArrivalInfo<'a> {
    /// Description of the neighbour, or path of the store's file.
    pub from: &'a Path,
    /// Length of the image, bytes.
    pub bytes: u64,
    /// Time since the request, including failed attempts.
    pub took: Duration,
}

/// Image that a neighbour sends.
pub struct ImageOffer {
    /// Description of the neighbour.
    pub from: String,
    /// Length of the whole image as the neighbour states it, bytes.
    pub bytes: u64,
    /// Stream of the rest of the image.
    pub content: Box<dyn Read + Send>,
}

/// Images that this process is fetching now.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<HashMap<ImageId, Arc<Arrival>>>);

/// Progress of an image that is being fetched.
#[derive(Debug, Default)]
struct Arrival {
    extent: Mutex<Extent>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Extent {
    /// File that is being written, and the length of the image; `None` if nothing has arrived.
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

    /// Waits until `is_so` returns true. Fails if fetching failed, or if nothing has arrived for too long.
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

    /// Lets readers read the bytes of an image that have arrived, until the result is dropped.
    pub(crate) fn announce(&self, id: &ImageId) -> Announcement<'_> {
        let arrival = Arc::<Arrival>::default();
        self.table().insert(*id, Arc::clone(&arrival));
        Announcement {
            arrivals: self,
            id: *id,
            arrival,
            is_whole: false,
        }
    }
}

/// Writer's side of an announced image: tells readers how much has arrived.
pub(crate) struct Announcement<'a> {
    arrivals: &'a Arrivals,
    id: ImageId,
    arrival: Arc<Arrival>,
    is_whole: bool,
}

impl Announcement<'_> {
    /// Starts the transfer into this file. If an earlier attempt wrote bytes, these are discarded, and their readers
    /// fail.
    pub(crate) fn begin(&mut self, file: Arc<File>, bytes: u64) {
        if self.arrival.extent().file.is_some() {
            self.arrival.change(|extent| extent.has_failed = true);
            self.arrival = Arc::default();
            let mut table = self.arrivals.table();
            table.insert(self.id, Arc::clone(&self.arrival));
        }
        self.arrival.change(|extent| extent.file = Some((file, bytes)));
    }

    pub(crate) fn add_written(&self, bytes: u64) {
        self.arrival.change(|extent| extent.written += bytes);
    }

    /// Marks the image as complete and published.
    pub(crate) fn set_complete(&mut self) {
        self.is_whole = true;
    }
}

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        self.arrivals.table().remove(&self.id);
        // If the image is complete, its readers do not wait for anything.
        if !self.is_whole {
            self.arrival.change(|extent| extent.has_failed = true);
        }
    }
}

/// Reads an image of a cache from its beginning; waits for bytes that have not arrived yet.
#[derive(Debug)]
pub struct ImageReader {
    file: Arc<File>,
    bytes: u64,
    at: u64,
    /// `None` if the image is complete.
    arrival: Option<Arc<Arrival>>,
}

impl ImageReader {
    /// Length of the image, bytes.
    pub fn length(&self) -> u64 {
        self.bytes
    }

    /// Continues reading at this offset. Returns `None` if the image is shorter.
    pub fn from_offset(self, at: u64) -> Option<Self> {
        (at <= self.bytes).then_some(Self { at, ..self })
    }
}

impl Read for ImageReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let here = match &self.arrival {
            _ if self.at == self.bytes => return Ok(0),
            None => self.bytes,
            Some(arrival) => arrival.wait(|extent| extent.written > self.at)?.written,
        };
        let most = usize::try_from(here - self.at).unwrap_or(usize::MAX).min(buffer.len());
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
    /// Returns a reader of an image that is in the cache, or that this process is fetching, else `None`. Blocks until
    /// the image's length is known. The bytes are not checked: the caller must hash them.
    ///
    /// # Errors
    /// Fails if the image cannot be read, or fetching it fails before its length is known.
    pub fn read(&self, id: &ImageId) -> Result<Option<ImageReader>, ImageError> {
        let arrival = self.arrivals.table().get(id).cloned();
        if let Some(arrival) = arrival {
            let image = self.image(id);
            let extent = arrival.wait(|extent| extent.file.is_some());
            let file = extent.map_err(io("wait for", &image))?.file.clone();
            return Ok(file.map(|(file, bytes)| ImageReader {
                file,
                bytes,
                at: 0,
                arrival: Some(Arc::clone(&arrival)),
            }));
        }
        // An image that arrived after the look-up above is in the cache.
        let image = self.image(id);
        let file = match File::open(&image) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io("open", &image)(error)),
        };
        let bytes = file.metadata().map_err(io("look at", &image))?.len();
        Ok(Some(ImageReader {
            file: Arc::new(file),
            bytes,
            at: 0,
            arrival: None,
        }))
    }
}
