"""Clients of an opened run, as they train."""


def clients_of(run, positions):
    users = run.clients.population.users
    names = [users[position] for position in positions]
    return run.clients.load(names, "train", run.state.broadcast(), user_set="population")
