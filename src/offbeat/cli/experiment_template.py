"""An experiment file to start from: `offbeat new experiment` writes it."""

TEXT = """\
# NAME: an experiment. Every line may be left out; these are the ones people change first.
#
#     offbeat run THIS                                                one run, stored in runs/
#     offbeat compare THIS --strategies fedavg,fedasync,fedbuff       a table over seeds, a figure and a page
#     offbeat run THIS --set strategy.k=5 --set training.lr=0.1       the same with changes

name: NAME

# What is learned. 'offbeat list datasets' and 'offbeat list models' have the names; your own code is FILE.py:Name,
# seen from this file: data: sites.py:load, model: net.py:Net.
data: digits
model: {name: mlp, hidden: [32]}

# Who has what: so many clients, with other mixtures of classes each (the smaller alpha, the more so). Data that names
# its owners, such as {site: (x, y)} of a function of your own, goes with 'partition: natural'.
clients: 10
partition: {name: dirichlet, alpha: 0.3}

# How long a job takes at each client, in virtual seconds: between 10 and 100.
delays: {name: uniform, low: 10, high: 100}

# What a client does with a model: plain SGD over its examples, once.
training: {lr: 0.05, batch: 16, epochs: 1}

# The method ('offbeat list strategies'), or one of your own: strategy: {name: mine.py:Mine, rate: 0.3}.
strategy: {name: fedbuff, k: 3}

# When it ends, which accuracy a table gives the time to, and the seed of everything that is drawn.
until: 600s
target: acc=0.8
seed: 0
"""
