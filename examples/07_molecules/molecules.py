import csv, gzip, statistics
import hotlease

def repetition(smiles):  # share of its substrings that it has more than once: a task of 0.15 ms
    parts = [smiles[i:j] for i in range(len(smiles)) for j in range(i + 1, len(smiles) + 1)]
    return 1 - len(set(parts)) / len(parts)

molecules = list(csv.DictReader(gzip.open("examples/07_molecules/molecules.csv.gz", "rt")))
with hotlease.Executor() as executor:  # a concurrent.futures.Executor; starts hotlease's daemon on this host, or joins it
    found = list(executor.map(repetition, [molecule["smiles"] for molecule in molecules]))
ranked = [float(molecule["PCE"]) for _, molecule in sorted(zip(found, molecules), key=lambda pair: pair[0])]
for fifth in range(5):
    share = ranked[fifth * len(ranked) // 5 : (fifth + 1) * len(ranked) // 5]
    print(f"{len(share):,} molecules, fifth {fifth + 1} of 5 by repetition: efficiency {statistics.mean(share):.2f} %")
