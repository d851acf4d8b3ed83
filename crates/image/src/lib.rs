//! Level 1 of hotlease: environments as single files.
//!
//! A Python environment is thousands of small files. On a parallel file system, each worker that imports from it sends
//! thousands of requests to the metadata servers. Packed into an image (squashfs) the environment is one file. A node
//! reads this file in large pieces, keeps it, and mounts it read-only for all its users there.
//!
//! ```text
//! tree ──pack──▶ store (shared) ──fetch, hash──▶ cache (node) ──mount──▶ folder
//!                                                  └──read──▶ caches of other nodes, even while the image arrives
//! ```
//!
//! * [`pack`] — makes an image of a virtual environment, a conda prefix or any other tree. Equal trees make equal
//!   images.
//! * [`ImageId`] — name of an image: the hash of its bytes.
//! * [`Manifest`] — metadata in an image: the path of the tree, and the interpreter outside of the tree that it needs.
//! * [`ImageStore`] — folder of images that nodes share.
//! * [`Cache`] — images of a node: limited, shared by its processes, and repaired after a crash at any step.
//! * [`Neighbours`] — other nodes that pass on the parts of an image that they have, so that the store is read once.
//! * [`MountedImage`] — an image that is mounted until the value is dropped.
//!
//! All calls block; fetching takes as long as the file system needs.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hotlease_image::{Cache, CacheOptions, ImageStore, Limits, pack};
//! # use std::path::Path;
//! let store = Path::new("/lustre/site/environments");
//! let packed = pack(Path::new("venv"), &ImageStore::at(store), &Limits::default())?;
//! let options = CacheOptions { stores: vec![store.into()], ..CacheOptions::default() };
//! let cache = Cache::open(Path::new("/var/cache/hotlease"), options)?;
//! let mounted = cache.mount(&packed.id)?;
//! println!("{}", mounted.path().join("bin/python").display());
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod cache;
mod error;
mod id;
mod limits;
mod lock;
mod manifest;
mod mount;
mod mounted_image;
mod neighbours;
mod pack;
mod store;
mod survey;
mod tool;
mod trace;

pub use cache::{Cache, CacheOptions, CachedImage};
pub use error::ImageError;
pub use id::{ImageId, ImageIdError};
pub use limits::Limits;
pub use manifest::{MANIFEST_FILE, Manifest, TreeKind};
pub use mount::MountMethod;
pub use mounted_image::MountedImage;
pub use neighbours::{ArrivalInfo, ImageOffer, ImageReader, Neighbours};
pub use pack::{PackResult, pack};
pub use store::ImageStore;
pub use trace::OpenRecorder;
