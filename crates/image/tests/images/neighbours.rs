//! Tests of images that come from other nodes, and are passed on to other nodes.

use crate::scene::{TestImages, names, noise};
use hotlease_image::{Cache, CacheOptions, ImageError, ImageId, ImageOffer, Neighbours};
use std::cell::Cell;
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// More bytes than a cache reads at once.
const BYTES: usize = 9 << 20;

/// Neighbours that send the given contents, one after the other.
#[derive(Debug, Default)]
struct TestNeighbours(Mutex<Vec<Content>>);

/// Stated length of the whole image, and the bytes that are sent from its beginning.
type Content = (u64, Box<dyn DebugRead>);

trait DebugRead: Read + Send + std::fmt::Debug {}
impl<T: Read + Send + std::fmt::Debug> DebugRead for T {}

impl Neighbours for TestNeighbours {
    fn offers<'a>(&'a self, _: &ImageId, at: &'a Cell<u64>) -> Box<dyn Iterator<Item = ImageOffer> + 'a> {
        Box::new(std::iter::from_fn(|| {
            let mut given = self.0.lock().unwrap();
            let (bytes, mut content) = (!given.is_empty()).then(|| given.remove(0))?;
            io::copy(&mut (&mut content).take(at.get()), &mut io::sink()).expect("it has so much");
            Some(ImageOffer {
                from: "agent 1".into(),
                bytes,
                content: Box::new(content),
            })
        }))
    }
}

/// Opens a cache in that folder, with neighbours that send these contents.
fn cache(scene: &TestImages, folder: &str, given: Vec<Content>) -> Cache {
    let options = CacheOptions {
        stores: vec![scene.path("store")],
        neighbours: Some(Arc::new(TestNeighbours(Mutex::new(given)))),
        ..CacheOptions::default()
    };
    Cache::open(&scene.path(folder), options).expect("a cache")
}

fn content(bytes: &[u8]) -> Content {
    (bytes.len() as u64, Box::new(io::Cursor::new(bytes.to_vec())))
}

fn named(bytes: &[u8]) -> ImageId {
    blake3::hash(bytes).to_hex().parse().expect("a name")
}

fn all(cache: &Cache, id: &ImageId) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reader = cache.read(id).map_err(io::Error::other)?;
    reader.expect("it is here").read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_empty(folder: &Path) {
    for name in ["images", "incoming", "stamps", "work", "use"] {
        assert_eq!(names(&folder.join(name)), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn an_image_comes_from_a_neighbour_and_no_store_has_to_have_it() {
    let scene = TestImages::new();
    let bytes = noise(1, BYTES);
    let cache = cache(&scene, "cache", vec![content(&bytes)]);
    cache.fetch(&named(&bytes)).expect("fetched");
    assert_eq!(std::fs::read(scene.cached(&named(&bytes))).unwrap(), bytes);
    assert_eq!(all(&cache, &named(&bytes)).unwrap(), bytes);
}

#[test]
fn wrong_content_of_a_neighbour_is_rejected_and_the_next_source_is_tried() {
    let scene = TestImages::new();
    let bytes = noise(2, BYTES);
    let mut wrong = bytes.clone();
    wrong[BYTES / 2] ^= 1;
    // Wrong, cut short, longer than announced, larger than the limit.
    let bad = || {
        vec![
            content(&wrong),
            (BYTES as u64, content(&bytes[..BYTES - 1]).1),
            (BYTES as u64 - 1, content(&bytes).1),
            (u64::MAX, content(&bytes).1),
        ]
    };
    let mut given = bad();
    given.push(content(&bytes));
    let good = cache(&scene, "a", given);
    good.fetch(&named(&bytes)).expect("from the last");
    assert_eq!(all(&good, &named(&bytes)).unwrap(), bytes);

    let without = cache(&scene, "b", bad());
    let error = without.fetch(&named(&bytes)).expect_err("no cache has it");
    assert!(matches!(error, ImageError::Unknown { .. }), "{error}");
    is_empty(&scene.path("b"));

    scene.publish(&bytes);
    let stored = cache(&scene, "c", bad());
    stored.fetch(&named(&bytes)).expect("from the store");
    assert_eq!(all(&stored, &named(&bytes)).unwrap(), bytes);
}

/// Source that sends pieces when the test provides them, and fails when the test drops its end.
#[derive(Debug)]
struct StepReader(Receiver<Vec<u8>>);

impl Read for StepReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let piece = self.0.recv().map_err(|_| io::Error::other("the neighbour is gone"))?;
        (&piece[..]).read(buffer)
    }
}

fn slow(bytes: usize) -> (SyncSender<Vec<u8>>, Content) {
    let (sender, receiver) = sync_channel(0);
    (sender, (bytes as u64, Box::new(StepReader(receiver))))
}

#[test]
fn received_pieces_are_passed_on_before_the_rest_arrives() {
    let scene = TestImages::new();
    let bytes = noise(3, 10_000);
    let id = named(&bytes);
    let (send, content) = slow(bytes.len());
    let first = cache(&scene, "a", vec![content]);
    thread::scope(|scope| {
        let fetching = scope.spawn(|| first.fetch(&id));
        send.send(bytes[..4000].to_vec()).unwrap();
        // The cache reads the next piece only after it has written this piece.
        let mut reader = first.read(&id).expect("it is coming").expect("it is coming");
        assert_eq!(reader.length(), bytes.len() as u64);
        let mut begun = vec![0; 4000];
        reader.read_exact(&mut begun).expect("they have come");
        assert_eq!(begun, bytes[..4000]);
        let second = {
            let content: Content = (reader.length(), Box::new(io::Cursor::new(begun).chain(reader)));
            cache(&scene, "b", vec![content])
        };
        let reading = scope.spawn(move || second.fetch(&id).map(|()| all(&second, &id).unwrap()));
        send.send(bytes[4000..].to_vec()).unwrap();
        send.send(Vec::new()).unwrap();
        assert_eq!(reading.join().unwrap().expect("it came through the first"), bytes);
        fetching.join().unwrap().expect("it is whole");
    });
}

#[test]
fn a_reader_of_a_fetch_is_told_when_it_breaks_off() {
    let scene = TestImages::new();
    let bytes = noise(4, 10_000);
    let id = named(&bytes);
    scene.publish(&bytes);
    let (send, content) = slow(bytes.len());
    let first = cache(&scene, "a", vec![content]);
    thread::scope(|scope| {
        let fetching = scope.spawn(|| first.fetch(&id));
        send.send(bytes[..4000].to_vec()).unwrap();
        let mut reader = first.read(&id).expect("it is coming").expect("it is coming");
        let mut begun = vec![0; 4000];
        reader.read_exact(&mut begun).expect("they have come");
        drop(send);
        // The image is read from the store from its beginning, and written to another file than this reader's.
        reader.read_to_end(&mut begun).expect_err("it broke off");
        fetching.join().unwrap().expect("the store has it");
    });
    assert_eq!(all(&first, &id).unwrap(), bytes);
}

#[test]
fn the_next_neighbour_continues_a_broken_transfer_unnoticed_by_readers() {
    let scene = TestImages::new();
    let bytes = noise(5, 10_000);
    let id = named(&bytes);
    let ((send, broken), (go_on, next)) = (slow(bytes.len()), slow(bytes.len()));
    let cache = cache(&scene, "a", vec![broken, next]);
    thread::scope(|scope| {
        let fetching = scope.spawn(|| cache.fetch(&id));
        send.send(bytes[..4000].to_vec()).unwrap();
        let reader = cache.read(&id).expect("it is coming").expect("it is coming");
        let reading = scope.spawn(move || {
            let mut read = Vec::new();
            { reader }.read_to_end(&mut read).map(|_| read)
        });
        drop(send);
        // The second neighbour leaves out the bytes that the first neighbour has sent.
        go_on.send(bytes[..4000].to_vec()).unwrap();
        go_on.send(bytes[4000..].to_vec()).unwrap();
        go_on.send(Vec::new()).unwrap();
        fetching.join().unwrap().expect("it is whole");
        assert_eq!(reading.join().unwrap().expect("it did not break off"), bytes);
    });
    assert_eq!(all(&cache, &id).unwrap(), bytes);
}

#[test]
fn two_that_send_parts_which_do_not_make_the_image_are_not_believed_and_it_begins_anew() {
    let scene = TestImages::new();
    let bytes = noise(6, 10_000);
    let mut wrong = bytes.clone();
    wrong[100] ^= 1;
    let length = bytes.len() as u64;
    // The first neighbour breaks off after a wrong byte; the second adds correct bytes.
    let given = vec![(length, content(&wrong[..5000]).1), content(&bytes), content(&bytes)];
    let cache = cache(&scene, "a", given);
    cache.fetch(&named(&bytes)).expect("from the third");
    assert_eq!(all(&cache, &named(&bytes)).unwrap(), bytes);
}
